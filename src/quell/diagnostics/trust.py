# SPDX-License-Identifier: Apache-2.0
"""What a user must know before trusting a fit, in short sentences."""

import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from quell.core.program import returns_none
from quell.core.tiers import tiered_jit
from quell.families import AbstractFamily, Capability
from quell.fit.status import Status
from quell.models import AbstractPredictor

if TYPE_CHECKING:
    from quell.fit.result import FitResult

LARGE_GAP = 0.1
"""Nats that a fit which did not end by itself may be below the optimum without a word."""

LARGE_ERROR = 0.02
"""Nats that the expectations of an exact fit may miss without a word."""

CONTRADICTION, LARGE_DIFFERENCE = 5.0, 1.0
"""Standard errors, and nats besides, between the ELBO that a fit followed and that of fresh draws."""

ROUNDED = 10.0
"""Units of rounding of the ELBO that both may differ by."""

IN_DOUBLE = "call `jax.config.update('jax_enable_x64', True)`"
"""What to do where single precision is too little."""


def warnings_of(result: "FitResult") -> tuple[str, ...]:
    """The sentences; none where nothing speaks against the fit.

    What neither the fit nor a draw of the fitted distribution has seen, such as a missed mode, has no sentence.
    """
    checks = (_of_end, _of_starts, _of_finiteness)
    if result.is_here:
        checks += (_of_precision, _of_elbo, _of_separation)
    if result.is_here and result.has_khat:
        checks += (_of_tails,)
    return tuple(text for check in checks if (text := check(result)) is not None)


def _of_end(result: "FitResult") -> str | None:
    status, gap = result.status, result.gap
    if status is Status.CONVERGED and result.measured_gap is not None:
        return None
    if status in (Status.DIVERGED, Status.INTERRUPTED, Status.STOPPED):
        return status.value
    is_far = gap is not None and not max(gap.value, 0.0) + gap.standard_error < LARGE_GAP
    if status is Status.COMPLETED and gap is None and result.choice is not None and result.is_here:
        return (
            "All steps were taken, and how much is left to gain could not be measured: the data or the parameters are "
            "too many, or lie on disk, or the family has no geometry. See whether twice the `steps` raise the ELBO."
        )
    if status is not Status.NOT_CONVERGED and not is_far:
        return None
    is_single = jax.tree.leaves(result.params)[0].dtype == jnp.float32
    is_rounded = is_single and result.choice is not None and result.choice.exact
    if gap is None or not math.isfinite(gap.value):
        text = "The fit has not converged. Take more `steps`, or go on from `params=result.params`."
        return f"{text} Where they did not run out, rounding hides the rest: {IN_DOUBLE}." if is_rounded else text
    left = f"The fit has not converged: about {gap} nats are left to gain"
    if gap.value > gap.standard_error:
        is_rounded = is_rounded and result.is_here and gap.value < _rounding(result)
        precision = f"{IN_DOUBLE}, since rounding keeps the rest, or take " if is_rounded else ""
        return f"{left}. Take more `steps` where they ran out, else {precision}a larger `tolerance`."
    most = 2 * (max(gap.value, 0.0) + gap.standard_error)
    return f"{left}, too few to be told from noise. If {most:.1g} nats are near enough, take that as `tolerance`."


def _rounding(result: "FitResult") -> float:
    """Nats of the ELBO that rounding may hide."""
    return ROUNDED * float(jnp.finfo(jax.tree.leaves(result.params)[0].dtype).eps) * abs(result.final_elbo.value)


def _of_starts(result: "FitResult") -> str | None:
    if result.starts_differ is None:
        return (
            "One start alone was tried, since another would have taken too long: other optima would not be seen. See "
            "whether fits from other `params` have a higher ELBO."
        )
    if not result.starts_differ:
        return None
    return (
        "Other starts ended in other optima, and this is the best of them: the posterior may have several modes, or "
        "parts that are hard to find. See whether other keys, or NUTS, agree."
    )


def _of_finiteness(result: "FitResult") -> str | None:
    elbo = result.history.elbo
    bad = int(np.sum(~np.isfinite(elbo)))
    if not bad and result.lost_draws:
        return (
            f"The fit left out up to {result.lost_draws:.1%} of its draws, where the log density or its gradient is "
            "infinite or NaN. A branch that is not taken may have such a gradient: keep its argument in its domain."
        )
    if not bad:
        return None
    return (
        f"The ELBO was not finite at {bad:,} of {elbo.size:,} steps: the log density or its gradient is infinite or "
        "NaN at some latents. Transform these to their support, for example by `jnp.exp`; where the gradient is NaN, "
        "keep the arguments of a branch that is not taken in its domain. See `quell.check_model(model)`."
    )


def _of_precision(result: "FitResult") -> str | None:
    family, params = result.problem.family, result.params
    if family.refuses(Capability.MOMENTS) is not None:
        return None
    mean, variance = map(np.asarray, _moments(family, params))
    eps = float(np.finfo(mean.dtype).eps)
    lost = int(np.sum(np.sqrt(variance) < 10 * eps * np.abs(mean)))
    if not lost:
        return None
    remedy = "centre or scale the data" if eps < 1e-10 else IN_DOUBLE
    return (
        f"{lost:,} of {mean.size:,} standard deviations are below what {mean.dtype} can tell from the mean beside "
        f"them: {remedy}."
    )


@tiered_jit
def _moments(family: AbstractFamily, params: PyTree) -> tuple[Array, Array]:
    return family.mean(params), family.variance(params)


def _of_elbo(result: "FitResult") -> str | None:
    final, last = result.final_elbo, result.history.elbo[-1:]
    if not math.isfinite(final.value):
        return "The ELBO of the fitted distribution is not finite: it gives weight to latents of density zero."
    by_nodes, by_rounding = result.quadrature_error
    rounding = _rounding(result)
    missed = by_nodes + max(by_rounding - rounding, 0.0)  # every number of that size is rounded
    if missed > LARGE_ERROR:
        return (
            f"The expectations that the fit followed miss about {missed:.2g} nats: the posterior is wide, or its "
            "density has kinks. `quell.fit` takes more nodes or draws where it keeps no checkpoint."
        )
    if final.is_exact:
        if not result.has_khat:  # no draws are wanted
            return None
        fresh = result.sampled_elbo
        margin = CONTRADICTION * fresh.standard_error + LARGE_GAP + rounding
        if abs(final.value - fresh.value) < margin:
            return None
        return (
            f"The ELBO without sampling is {final}, and draws say {fresh}: its expectations may be out of reach of "
            "their nodes. Compare with `variates=()`, which samples."
        )
    if result.choice is None or result.choice.base != "common draws" or not last.size:
        return None
    if not float(last[0]) - final.value > CONTRADICTION * final.standard_error + LARGE_DIFFERENCE:
        return None
    return (
        f"The fit reached an ELBO of {float(last[0]):.2f} on its own draws, and fresh ones say {final}: its draws "
        "are too few for the tails of the density. Reparameterize the model, or try another family."
    )


def _of_separation(result: "FitResult") -> str | None:
    predictor = result.problem.model.predictor
    if predictor is None or returns_none(lambda: predictor.quadratic_bound(jnp.zeros(1), jnp.ones(1))):
        return None  # labels have a bound
    data, family = result.problem.model.data, result.problem.family
    if not isinstance(jax.tree.leaves(data)[0], jax.Array) or family.refuses(Capability.MOMENTS) is not None:
        return None
    if not np.all(np.asarray(_margins(predictor, data, family, result.params)) > 0):
        return None
    return (
        "The data are separable: the likelihood alone would make the coefficients infinite, and the prior decides how "
        "large they are. See that its scale is meant."
    )


@tiered_jit
def _margins(predictor: AbstractPredictor, data: PyTree, family: AbstractFamily, params: PyTree) -> Array:
    return predictor.rows(data) @ family.mean(params)


def _of_tails(result: "FitResult") -> str | None:
    khat = result.final_khat
    return None if khat.is_good else f"K-hat is {khat.value:.2f}. {khat.advice}"
