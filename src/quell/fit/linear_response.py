# SPDX-License-Identifier: Apache-2.0
"""Covariances that a family leaves out, from how the fit answers to a change of the model."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from quell.core.tiers import tiered_jit
from quell.data.access import on_disk
from quell.evaluation import Problem, has_exact_elbo
from quell.families import Capability, FullRank, LocationScale, MeanField
from quell.fit.common_draws import CommonDraws, ExactElbo
from quell.fit.common_noise import Draws
from quell.fit.history import History
from quell.fit.status import Status
from quell.fit.trust_region import MOST_PRODUCTS, trust_step
from quell.gradient import Gradient, default_base

if TYPE_CHECKING:
    from quell.diagnostics import Khat, Summary
    from quell.fit.result import FitResult

MOST_DENSE = 4096
"""Parameters of the family up to which the Hessian is formed and factorised."""

MOST_QUANTITIES = 1000
"""That are solved for, each by conjugate gradients."""

BLOCKS = 8
"""Of common random numbers, where the ELBO is not exact."""

RESIDUAL = 1e-3
"""Of conjugate gradients, as a share of the gradient of a quantity."""

QUANTITY_DRAWS = 4096
"""That the expectation of a quantity is taken over."""

MOST_MISSED, FEWEST_EFFECTIVE = 0.15, 100
"""In logarithms of standard deviations, before which they are trusted, and effective draws that can tell: five times
the noise of that number of them."""

JUMP = 15.0
"""Times the variance of a slope by noise, over the root of the coordinates, that it may differ from the slope."""

FAR = 0.1
"""Nats to the optimum beyond which the covariance at the fit is not that at the optimum."""


class Response(NamedTuple):
    """Mean and standard deviation of some quantities, each of their shape."""

    mean: PyTree
    std: PyTree


class LinearResponse:
    r"""The posterior covariance that a fit implies, beyond that of its family.

    A mean-field family reports the variance of each coordinate with all others held: too little, where they are
    correlated. How far the fitted mean moves when the log density is tilted is another estimate of the covariance:

    \[ \mathrm{Cov}(f, g) = \nabla_w E f^\top\, (-H)^{-1}\, \nabla_w E g \]

    with the Hessian \(H\) of the ELBO in all parameters \(w\) of the family, where the fit has converged. It is exact
    for a normal posterior.

    Bias: of first order in the tilt; where the mean is wrong, so is what is built on it.
    Cost: a product with the Hessian for each parameter, and one factorisation; for `of` some products for each
    quantity.

    References: Giordano, Broderick & Jordan (2018), "Covariances, robustness, and variational Bayes".

    Example:
        >>> import jax, quell
        >>> data = quell.paper.load("sonar")
        >>> model = quell.logistic_regression(data.features, data.labels)
        >>> result = quell.fit(model, quell.MeanField(model.dim), key=jax.random.key(0))
        >>> bool((result.linear_response().std > result.std).all())
        True
    """

    def __init__(self, result: "FitResult") -> None:
        """Nothing is computed yet."""
        problem = result.problem
        needed = problem.family.refuses(Capability.GEOMETRY, Capability.ENTROPY, Capability.GAUSSIAN)
        if needed is not None:
            raise ValueError(f"`linear_response` needs a Gaussian family, and {needed}; fit `quell.MeanField`.")
        objective = ExactElbo(problem) if has_exact_elbo(problem) else None
        if objective is None and not on_disk(problem.model.data):
            objective = CommonDraws.of(problem)
        if objective is None:
            raise ValueError(
                "`linear_response` needs an ELBO that some draws on all data tell, got "
                f"{problem.model.num_data:,} data and {problem.family.num_params:,} parameters; take some of the data."
            )
        self.result, self._objective = result, objective

    @functools.cached_property
    def covariance(self) -> Float[Array, "latent latent"]:
        """Of the flat latent, in the model's own (unconstrained) coordinates; for mean field.

        It warns where draws with this covariance, weighted by the posterior, have other standard deviations: those of
        k-hat, on all data. Not where the fit takes none (`khat=False`, or data on several machines).
        """
        self._warn_if_far()
        self._warn_if_wrong()
        return self.solved

    @functools.cached_property
    def solved(self) -> Float[Array, "latent latent"]:
        """The covariance, without a word on whether it can be trusted."""
        problem = self.result.problem
        if not isinstance(problem.family, MeanField):
            raise ValueError(
                f"`covariance` is for `quell.MeanField`, got {problem.family}, which has correlations of its own: see "
                "`result.std` and `result.sample`; `result.linear_response().of(lambda latent: ...)` serves it too."
            )
        if problem.family.num_params > MOST_DENSE:
            raise ValueError(
                f"`covariance` needs a family of at most {MOST_DENSE:,} parameters, got {problem.family.num_params:,}; "
                "choose quantities: `result.linear_response().of(lambda latent: ...)`."
            )
        found = _covariance(self._objective, self.result.params)
        if not bool(jnp.all(jnp.isfinite(found))):
            raise ValueError(_NO_TOP)
        return found

    def _warn_if_far(self) -> None:
        """Say that a fit is not at the optimum that everything here is about."""
        gap = self.result.gap
        if self.result.status is Status.CONVERGED or (gap is not None and abs(gap.value) < FAR):
            return
        told = "was not measured" if gap is None else f"is {gap}"
        warnings.warn(
            f"`linear_response` is about an optimum, and the fit has not converged: its gap {told}. Take more `steps`.",
            stacklevel=3,
        )

    def _warn_if_wrong(self) -> None:
        """Hold the standard deviations against those of weighted draws, which are right where the weights are even."""
        if not (self.result.has_khat and self.result.is_here):
            return
        from quell.diagnostics.corrected import weighted_std

        weighted, effective = weighted_std(jax.random.key(0), self._full_rank.problem, self._full_rank.params)
        missed = np.max(np.abs(np.log(weighted / np.sqrt(np.diagonal(self.solved)))))
        if missed < MOST_MISSED and effective > FEWEST_EFFECTIVE:
            return
        told = f"weights of the posterior change them by a factor of up to {np.exp(missed):.2f}"
        if not effective > FEWEST_EFFECTIVE:
            told = "weights of the posterior leave too few draws to tell"
        warnings.warn(
            f"Standard deviations of `linear_response` may be wrong: {told}. `result.nuts(key)` draws from the "
            "posterior itself.",
            stacklevel=4,
        )

    @property
    def std(self) -> Any:
        """Standard deviation of each coordinate, in the model's own (unconstrained) coordinates."""
        return self.result.problem.model.unravel(jnp.sqrt(jnp.diagonal(self.covariance)))

    @functools.cached_property
    def _full_rank(self) -> "FitResult":
        """The fit with this covariance, as a full-rank Gaussian: for its draws; it was not fitted itself."""
        model = self.result.problem.model
        family = FullRank(model.dim)
        params = LocationScale(
            self.result.problem.family.mean(self.result.params),
            _parameters_of(np.linalg.cholesky(np.asarray(self.solved)), log_scale=family.log_scale),
        )
        problem = Problem(model, family)
        gradient = Gradient(problem, base=default_base(problem))
        return dataclasses.replace(
            self.result,
            params=params,
            gradient=gradient,
            state=gradient.init(params),
            history=History.empty(0, 0),
            status=Status.COMPLETED,
            choice=None,
            measured_gap=None,
            num_gradients=0,
        )

    @property
    def _checked(self) -> "FitResult":
        """The same, after the warnings of `covariance`."""
        self.covariance  # noqa: B018
        return self._full_rank

    def sample(self, key: Key[Array, ""], num: int) -> Any:
        """Draw latents with this covariance, on the scale their user reads, with a leading axis."""
        return self._checked.sample(key, num, corrected=False)

    def summary(self, key: Key[Array, ""] | None = None, num: int = 1000) -> "Summary":
        """As that of the result, with this covariance."""
        return self._checked.summary(key, num, corrected=False)

    def khat(self, key: Key[Array, ""] | None = None, num: int | None = None) -> "Khat":
        """How far the Gaussian with this covariance can be trusted."""
        return self._full_rank.khat(key, num)

    def to_arviz(self, key: Key[Array, ""] | None = None, num: int = 1000) -> Any:
        """As that of the result, with draws of this covariance."""
        return self._checked.to_arviz(key, num, corrected=False)

    def of(self, quantities: Callable[[Any], Any], key: Key[Array, ""] | None = None) -> Response:
        """Mean and standard deviation of functions of the latent, however many coordinates that has.

        Args:
            quantities: of the latent as `result.sample` has it, any tree of arrays; smooth, since their slopes count.
            key: for the draws that their expectations are taken over; a fixed one by default.
        """
        problem, params = self.result.problem, self.result.params
        key = jax.random.key(0) if key is None else key
        half = problem.family.noise(key, QUANTITY_DRAWS // 2, jax.tree.leaves(params)[0].dtype)
        half = half / jnp.sqrt(jnp.mean(half**2, axis=0))
        noise = jnp.concatenate([half, -half])  # exact means, and exact variances of each coordinate of the noise
        shapes = jax.eval_shape(lambda z: quantities(problem.model.constrain(z)), problem.family.mean(params))
        kinds = {leaf.dtype.name for leaf in jax.tree.leaves(shapes) if not jnp.issubdtype(leaf.dtype, jnp.floating)}
        if kinds:
            raise TypeError(
                f"`quantities` must be smooth functions with real values, got {sorted(kinds)[0]}; the probability "
                "of an event is a mean over `result.sample(key, num)`."
            )
        self._warn_if_far()
        flat, unflatten = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes))
        if flat.size > MOST_QUANTITIES:
            raise ValueError(
                f"`quantities` must be at most {MOST_QUANTITIES:,} numbers, got {flat.size:,}; choose some of them."
            )
        mean, found = _responses(self._objective, params, quantities, noise)
        variance, are_inside, are_solved, are_flat, jump = found
        if not bool(jnp.all(are_inside)):
            raise ValueError(_NO_TOP)
        if bool(jnp.any(are_flat)):
            raise ValueError(
                "`quantities` must have slopes, got one that varies and has none, as of a step or of rounding; take "
                "its standard deviation over `result.linear_response().sample(key, num)`."
            )
        if not bool(jnp.all(are_solved)):
            raise ValueError(
                f"Conjugate gradients did not end within {MOST_PRODUCTS} products; call "
                "`jax.config.update('jax_enable_x64', True)` before the model is made, or choose other quantities."
            )
        if bool(jnp.any(jump)):
            warnings.warn(
                "`quantities` jump, and slopes do not tell of that: these standard deviations are too small. Take "
                "those of `result.linear_response().sample(key, num)`.",
                stacklevel=2,
            )
        return Response(unflatten(mean), unflatten(jnp.sqrt(variance)))


_NO_TOP = (
    "`linear_response` needs a fit at an optimum, and the Hessian of the ELBO has a direction that rises there; take "
    "more `steps`, or another start."
)


def _parameters_of(tril: Float[np.ndarray, "latent latent"], *, log_scale: bool) -> Float[Array, "latent latent"]:
    diagonal = np.diagonal(tril)
    return jnp.asarray(np.tril(tril, -1) + np.diag(np.log(diagonal) if log_scale else diagonal))


def _draws(objective: CommonDraws | ExactElbo) -> Draws:
    return Draws(jnp.zeros((), jnp.uint32), *jnp.asarray([BLOCKS, objective.pieces], jnp.int32))


@tiered_jit
def _covariance(objective: CommonDraws | ExactElbo, params: PyTree) -> Float[Array, "latent latent"]:
    family = objective.problem.family
    origin, unflatten = ravel_pytree(family.geometry.origin(params))
    product = objective.product(params, _draws(objective))
    rows = jax.lax.map(lambda row: ravel_pytree(product(unflatten(row)))[0], jnp.eye(origin.size, dtype=origin.dtype))
    slopes = jax.jacfwd(lambda at: family.mean(family.geometry.chart(params, unflatten(at))))(origin)
    # Symmetric but for rounding, and not positive where the fit is at no optimum: then the factor is no number.
    factor = jnp.linalg.cholesky(-0.5 * (rows + rows.T))
    half = jax.scipy.linalg.solve_triangular(factor, slopes.T, lower=True)
    return half.T @ half


@tiered_jit
def _responses(
    objective: CommonDraws | ExactElbo,
    params: PyTree,
    quantities: Callable[[Any], Any],
    noise: Float[Array, "draw noise"],
) -> tuple[Float[Array, "quantity"], tuple[Array, ...]]:
    """Means; variances, whether they are finite and solved for, which quantities have no slope, and which jump.

    The slope of a mean is the mean of slopes, unless there are jumps; and the mean of the quantity times the noise, by
    Stein's identity, whatever there is.
    """
    family, model = objective.problem.family, objective.problem.model
    product = objective.product(params, _draws(objective))
    num, dim = noise.shape

    def expected(at: PyTree, shift: Float[Array, "noise"]) -> tuple[Float[Array, "quantity"], Array]:
        there = family.geometry.chart(params, at)
        shifted = noise + shift
        values = jax.vmap(lambda one: ravel_pytree(quantities(model.constrain(family.sample(there, one))))[0])(shifted)
        return jnp.mean(values, axis=0), values

    origin = family.geometry.origin(params), jnp.zeros(dim, noise.dtype)
    mean, pull, values = jax.vjp(expected, *origin, has_aux=True)

    def response(row: Float[Array, "quantity"]) -> tuple[Array, ...]:
        slope, by_shift = pull(row)
        step = trust_step(slope, product, jnp.asarray(jnp.inf, mean.dtype), jnp.asarray(RESIDUAL, mean.dtype))
        centred = (values - mean) @ row
        by_noise = centred @ noise / num
        spread = jnp.mean(centred**2 * jnp.sum(noise**2, axis=1)) - jnp.sum(by_noise**2)
        missed, error = jnp.sum((by_noise - by_shift) ** 2), 2 * spread / num  # half of the draws mirror the others
        jumps = missed > (1 + JUMP / math.sqrt(dim)) * error
        return step.slope, step.is_inside, step.is_solved, (step.slope == 0) & (jnp.max(jnp.abs(centred)) > 0), jumps

    return mean, jax.lax.map(response, jnp.eye(mean.size, dtype=mean.dtype))
