# SPDX-License-Identifier: Apache-2.0
"""What a fit returns."""

import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from quell.core.estimate import Estimate, mean_of
from quell.core.tiers import tiered_jit
from quell.evaluation import Problem, has_exact_elbo
from quell.evaluation.expectation import Missed
from quell.families import Capability
from quell.families.sample import draw_latents
from quell.fit.choice import Choice
from quell.fit.extras import adapter
from quell.fit.gap import measure_gap
from quell.fit.history import History
from quell.fit.seconds import Seconds
from quell.fit.status import Status
from quell.gradient import Gradient, GradientState
from quell.models import AbstractModel

if TYPE_CHECKING:
    from quell.diagnostics import Khat, Summary
    from quell.diagnostics.densities import ScoredSample
    from quell.fit.linear_response import LinearResponse


class FitResult(eqx.Module):
    """A fitted approximation of the posterior.

    Args:
        params: of the family, where the fit ended.
        gradient: the problem, the variates and the settings of the fit.
        state: of the gradient, where the fit ended.
        history: per-step diagnostics.
        status: how the fit ended, with advice.
        seconds: wall-clock time by stage: reading the model, compiling, fitting.
        choice: what was chosen automatically, and why; `None` where the variates were given.
        measured_gap: nats to the optimum, where the fit has measured them itself.
        num_gradients: of the log density that the fit has taken, each at one draw on the rows that a step sees; of an
            exact fit each at all nodes of all addends. A product with its Hessian counts as two, and as one in an exact
            fit, where it takes less time than a gradient.
        starts_differ: whether several starts of Newton steps were tried, and ended in different optima; `None` where
            the first alone was, since another would have taken too long, and the model may have several optima.
        lost_draws: largest share of the draws of a round that the fit left out, since the log density or its gradient
            was not finite; after the first round, whose starts may be far away.
        has_khat: whether `print` and `warnings` take k-hat, and so draws that see all data.
    """

    params: PyTree
    gradient: Gradient
    state: GradientState
    history: History
    status: Status
    seconds: Seconds
    choice: Choice | None = None
    measured_gap: Estimate | None = None
    num_gradients: int = 0
    starts_differ: bool | None = False
    lost_draws: float = 0.0
    has_khat: bool = True

    @property
    def problem(self) -> Problem:
        """The model and the family that were fitted."""
        return self.gradient.problem

    @functools.cached_property
    def gap(self) -> Estimate | None:
        """Nats between the fit and the optimum of the family near it, with a standard error.

        Where the fit has not measured it itself, it is measured now, on fresh draws; `None` where that cannot be done:
        for families without a Fisher geometry or with more than 100,000 parameters, for data on disk or too many for
        some draws to see all, and where the ELBO is not finite.

        Bias: to second order none. Other optima are not seen.
        """
        if self.measured_gap is not None or not self.is_here:
            return self.measured_gap
        return measure_gap(self.gradient, self.params)

    @property
    def is_here(self) -> bool:
        """Whether this process holds all data. Otherwise nothing is measured unasked: all processes would have to."""
        leaves = jax.tree.leaves((self.problem, self.params))
        return all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves)

    @functools.cached_property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the fit, each with what to do about it; empty where nothing does.

        No draw of the fitted distribution can see another mode of the posterior: of those only what other starts of the
        fit have met is told. Where several processes share the data, only what the fit itself has seen is told.
        """
        from quell.diagnostics.trust import warnings_of

        return warnings_of(self)

    @functools.cached_property
    def final_elbo(self) -> Estimate:
        """The ELBO of the parameters of the result, not an average over the path to them: exact, or on fresh draws."""
        from quell.diagnostics.elbo import exact_elbo_in_chunks

        if self.problem.expectation is not None:
            return Estimate(self._quadrature[0], 0.0)
        if has_exact_elbo(self.problem):
            return exact_elbo_in_chunks(self.problem, self.params)
        return self.sampled_elbo

    @property
    def sampled_elbo(self) -> Estimate:
        """The ELBO on fresh draws, those of `final_khat`."""
        return mean_of(self._fresh.log_ratios)

    @property
    def quadrature_error(self) -> Missed:
        """Nats that nodes and rounding miss of an ELBO that is exact by the model's structure."""
        return Missed(0.0, 0.0) if self.problem.expectation is None else self._quadrature[1]

    @functools.cached_property
    def _quadrature(self) -> tuple[float, Missed]:
        """The exact ELBO, and what it misses."""
        elbo, missed = _exact_elbo_and_error(self.problem, self.params)
        return float(elbo), Missed(*map(float, missed))

    @functools.cached_property
    def final_khat(self) -> "Khat":
        """`khat` on the same draws."""
        from quell.diagnostics.khat import khat_of

        return khat_of(self._fresh, self.problem.family)

    @functools.cached_property
    def _fresh(self) -> "ScoredSample":
        """Draws of a fixed key, with their log densities."""
        from quell.diagnostics.khat import telling_sample

        return telling_sample(_or_fixed(None), self.problem, self.params)

    @property
    def mean(self) -> Any:
        """Mean of the fitted distribution, in the model's own (unconstrained) coordinates; draws may be corrected."""
        self._check_moments("mean")
        return self.problem.model.unravel(self.problem.family.mean(self.params))

    @property
    def std(self) -> Any:
        """Standard deviations of the fitted distribution, as `mean`."""
        self._check_moments("std")
        return self.problem.model.unravel(jnp.sqrt(self.problem.family.variance(self.params)))

    @functools.cached_property
    def corrects(self) -> bool:
        """Whether draws are corrected unasked, because that brings them nearer to the posterior.

        They are where k-hat is good, and importance weights so uneven that some expectation may be off by a tenth of
        its standard deviation, and yet a thousand draws can be had in little time. Where data are more than some 1,600,
        or k-hat is not wanted, that is not known, and they are not.

        Cost: that of `final_khat`, at the first access.
        """
        from quell.diagnostics.corrected import is_quick, pool_size
        from quell.diagnostics.densities import has_many_draws

        if not (self.is_here and self.has_khat and has_many_draws(self.problem)):
            return False
        return self.final_khat.is_correctable and is_quick(self.problem, pool_size(1_000, self.final_khat))

    def sample(self, key: Key[Array, ""], num: int, *, corrected: bool | None = None) -> Any:
        """Draw latents from the posterior, as near as the fit comes, on the scale their user reads.

        Args:
            key: for the draws.
            num: of them; their leading axis.
            corrected: whether they are draws of the fitted distribution, or of the posterior by importance resampling
                with Pareto-smoothed weights; by default as `corrects` says, and not under a transformation of JAX.
                Corrected draws are refused where k-hat is too large.

        Cost: of a draw that is corrected ten evaluations of the log density, more where weights are very uneven.
        """
        return _constrained(self.problem.model, self.sample_flat(key, num, corrected=corrected))

    def sample_flat(
        self, key: Key[Array, ""], num: int, *, corrected: bool | None = None
    ) -> Float[Array, "sample latent"]:
        """Draw flat latents, as `sample` does."""
        if not self._corrects(key, corrected):
            return draw_latents(key, self.problem.family, self.params, num)
        return self._corrected(key, num).latents

    def scored_sample(self, key: Key[Array, ""], num: int, *, corrected: bool | None = None) -> "ScoredSample":
        """Draw flat latents, as `sample` does, with their log densities."""
        from quell.diagnostics.densities import score_sample

        if not self._corrects(key, corrected):
            return score_sample(key, self.problem, self.params, num)
        return self._corrected(key, num)

    def _corrects(self, key: Key[Array, ""], corrected: bool | None) -> bool:
        if corrected is not None:
            return corrected
        leaves = jax.tree.leaves((key, self.params, self.problem))
        return not any(isinstance(leaf, Tracer) for leaf in leaves) and self.corrects

    def _corrected(self, key: Key[Array, ""], num: int) -> "ScoredSample":
        from quell.diagnostics.corrected import corrected_sample

        return corrected_sample(key, self.problem, self.params, num, self.final_khat)

    def summary(
        self, key: Key[Array, ""] | None = None, num: int = 1000, *, corrected: bool | None = None
    ) -> "Summary":
        """Mean, standard deviation and quantiles of every number of the latent, on the scale its user reads.

        Args:
            key: for the samples; a fixed one by default.
            num: samples; the error of a mean is about the standard deviation over the root of their number.
            corrected: as for `sample`.
        """
        from quell.diagnostics import summarise

        return summarise(self.sample(_or_fixed(key), num, corrected=corrected))

    def linear_response(self) -> "LinearResponse":
        """Covariances beyond those of the family, for all coordinates or chosen quantities.

        See `quell.LinearResponse`. It is what gives a mean-field fit standard deviations that are right.
        """
        from quell.fit.linear_response import LinearResponse

        return LinearResponse(self)

    def nuts(
        self,
        key: Key[Array, ""],
        num_samples: int = 1000,
        *,
        num_warmup: int = 100,
        num_chains: int = 4,
        **options: Any,
    ) -> Any:
        """Draw from the posterior itself with NumPyro's NUTS, which starts from draws of the fit with its covariance.

        The inverse mass matrix is the covariance of the fit, by linear response for a mean-field family. It is not
        adapted, and the warm-up, which finds a step size, is short. Beyond 1,000 coordinates, and where there is no
        linear response, it is diagonal and adapted: give a longer warm-up.

        Args:
            key: of the chains.
            num_samples: of each chain.
            num_warmup: steps of each before.
            num_chains: side by side.
            options: of `numpyro.infer.NUTS`, such as `target_accept_prob`.

        Returns:
            A `numpyro.infer.MCMC` that has run: `get_samples()` has the latents as `sample` has them, and
            `get_extra_fields()["num_steps"]` the gradients of each draw.
        """
        nuts = adapter("numpyro.nuts", "`nuts`").run_nuts
        sizes = {"num_samples": num_samples, "num_warmup": num_warmup, "num_chains": num_chains}
        return nuts(self, key, **sizes, **options)

    def predict(
        self, key: Key[Array, ""], *args: Any, num: int = 1000, batch: int = 100, **kwargs: Any
    ) -> dict[str, np.ndarray]:
        """Draw what a NumPyro model has not observed, given draws of the fit: its posterior predictive.

        Of a PyMC model the observed variables are drawn, by `pymc.sample_posterior_predictive`; for other inputs call
        `pymc.set_data` before.

        Args:
            key: for latents and data.
            args: of a NumPyro model, with `None` for the data that are to be drawn.
            num: draws.
            batch: of them that are computed at once.
            kwargs: of the model.

        Returns:
            By the name of each site, with a leading axis of draws.
        """
        part = adapter("pymc" if type(self.problem.model).__name__ == "PyMCModel" else "numpyro.predict", "`predict`")
        return part.predict(self, key, (args, kwargs), num=num, batch=batch)

    def elbo(self, key: Key[Array, ""] | None = None, num: int = 1000) -> Estimate:
        """The ELBO in nats over all data, with its standard error, which is 0 where `exact_elbo` knows it.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, where they are needed.
        """
        from quell.diagnostics import estimate_elbo

        return estimate_elbo(_or_fixed(key), self.problem, self.params, num=num)

    def khat(self, key: Key[Array, ""] | None = None, num: int | None = None) -> "Khat":
        """How far the fitted distribution can be trusted, with advice.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, at least 25; by default 10,000, fewer where there are many data, and up to 16 times as many
                where these do not decide.
        """
        from quell.diagnostics import estimate_khat

        return estimate_khat(_or_fixed(key), self.problem, self.params, num=num)

    def to_arviz(
        self,
        key: Key[Array, ""] | None = None,
        num: int = 1000,
        *,
        log_likelihood: bool | None = None,
        corrected: bool | None = None,
    ) -> Any:
        """Samples and history for ArviZ.

        The group `posterior` has the values of `sample`, by name; `sample_stats` has `lp` and, where draws are not
        corrected, `log_q`, the log densities under p and q; `fit` has the history; `log_likelihood` has that of each
        datum, or by PyMC's observed variables that of each event. The attributes tell status, seconds, k-hat and
        quell's version.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, at least 25.
            log_likelihood: whether to store that of each datum at each sample; by default where these are at most ten
                million numbers.
            corrected: as for `sample`.

        Returns:
            An `InferenceData` of ArviZ before 1.0, a `DataTree` of xarray from then on.
        """
        from quell.adapters.arviz import to_arviz

        return to_arviz(self, _or_fixed(key), num, log_likelihood=log_likelihood, corrected=corrected)

    def report(self, path: str | os.PathLike[str], *, key: Key[Array, ""] | None = None, seconds: float = 30.0) -> Path:
        """Write one self-contained HTML page about the fit: figures, tables and advice in words.

        Args:
            path: of the page.
            key: for the draws behind its numbers; a fixed one by default, so that two reports of one fit agree up to
                measured times.
            seconds: after which no more costs of variates are measured; each needs a compilation.

        Returns:
            The path.
        """
        from quell.diagnostics.report import write_report

        return write_report(Path(path), self, _or_fixed(key), seconds=seconds)

    def __repr__(self) -> str:
        """Result, time, ELBO, variance removed and weights, one line each; then what speaks against the fit."""
        problem, history, gap = self.problem, self.history, self.gap
        left = "" if gap is None or not math.isfinite(gap.value) else f", {gap} nats below the optimum"
        measured = []
        if self.is_here:
            how = "exact" if self.final_elbo.is_exact else "on fresh draws"
            measured = [f"  elbo     {self.final_elbo} ({how}){left}"]
        if self.is_here and self.has_khat:
            then = "; draws are corrected" if self.corrects else ""
            measured.append(f"  k-hat    {self.final_khat.value:.2f}, good up to {self.final_khat.threshold:.2f}{then}")
        work = f", {self.num_gradients:,} gradients" if self.num_gradients else ""
        lines = [
            f"FitResult({problem.family!r} for {problem.model!r})",
            f"  status   {self.status.name.lower()}: {self.status.value}",
            f"  steps    {history.num_steps:,} in {self.seconds}{work}",
            *measured,
        ]
        if self.choice is not None:
            lines.append(f"  chosen   {self.choice.reason}")
        if history.num_skipped:
            lines.append(f"  skipped  {history.num_skipped:,} steps, because they were not finite")
        if self.gradient.names and history.taken.num_steps:
            lines += self._variate_lines()
        return "\n".join(lines + [f"  warning  {text}" for text in self.warnings])

    def _check_moments(self, name: str) -> None:
        if self.problem.family.refuses(Capability.MOMENTS) is not None:
            raise ValueError(
                f"`{name}` needs a family with {Capability.MOMENTS.value}, got {self.problem.family}; try "
                "`result.summary()`."
            )

    def _variate_lines(self) -> list[str]:
        taken = self.history.taken
        tail = slice(-max(1, taken.num_steps // 10), None)
        base, combined = (float(np.mean(values[tail])) for values in (taken.base_sq_norm, taken.combined_sq_norm))
        weights = taken.weights[tail].mean(axis=0)
        listed = ", ".join(f"{n} {w:+.2f}" for n, w in zip(self.gradient.weight_names, weights, strict=True))
        lines = [
            f"  gradient squared norm {combined:.3g}, {base / max(combined, 1e-300):.1f} times below the base gradient",
            f"  weights  {listed}",
        ]
        dropped = self.history.dropped.sum(axis=0)
        if dropped.any():
            counts = ", ".join(f"{n} {c}" for n, c in zip(self.gradient.names, dropped, strict=True) if c)
            lines.append(f"  dropped  {counts} times, because they were not finite")
        return lines


@tiered_jit
def _constrained(model: AbstractModel, latents: Float[Array, "sample latent"]) -> Any:
    return jax.vmap(model.constrain)(latents)


def _or_fixed(key: Key[Array, ""] | None) -> Key[Array, ""]:
    """A summary of a fit is the same each time, unless another key is given."""
    return jax.random.key(0) if key is None else key


@tiered_jit
def _exact_elbo_and_error(problem: Problem, params: PyTree) -> tuple[Float[Array, ""], Missed]:
    assert problem.expectation is not None
    value, missed = problem.expectation.value_and_missed(problem.family.gaussian(params))
    return value + problem.family.entropy(params), missed
