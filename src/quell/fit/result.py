# SPDX-License-Identifier: Apache-2.0
"""What a fit returns."""

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.evaluation import Problem
from quell.families import Capability
from quell.families.sample import draw_latents
from quell.fit.choice import Choice
from quell.fit.history import History
from quell.fit.status import Status
from quell.gradient import Gradient, GradientState

if TYPE_CHECKING:
    from quell.diagnostics import Estimate, Khat, Summary


class FitResult(eqx.Module):
    """A fitted approximation of the posterior.

    Args:
        params: of the family, where the fit ended.
        gradient: the problem, the variates and the settings of the fit.
        state: of the gradient, where the fit ended.
        history: per-step diagnostics.
        status: how the fit ended, with advice.
        seconds: wall-clock time, compilation included.
        choice: what was chosen automatically, and why; `None` where the variates were given.
    """

    params: PyTree
    gradient: Gradient
    state: GradientState
    history: History
    status: Status
    seconds: float
    choice: Choice | None = None

    @property
    def problem(self) -> Problem:
        """The model and the family that were fitted."""
        return self.gradient.problem

    @property
    def mean(self) -> Any:
        """Mean of the fitted distribution, in the model's own (unconstrained) coordinates."""
        self._check_moments("mean")
        return self.problem.model.unravel(self.problem.family.mean(self.params))

    @property
    def std(self) -> Any:
        """Standard deviation of each coordinate, in the model's own (unconstrained) coordinates."""
        self._check_moments("std")
        return self.problem.model.unravel(jnp.sqrt(self.problem.family.variance(self.params)))

    def sample(self, key: Key[Array, ""], num: int) -> Any:
        """Draw latents from the fitted distribution, on the scale their user reads, with a leading axis."""
        return jax.vmap(self.problem.model.constrain)(self.sample_flat(key, num))

    def sample_flat(self, key: Key[Array, ""], num: int) -> Float[Array, "sample latent"]:
        """Draw flat latents."""
        return draw_latents(key, self.problem.family, self.params, num)

    def summary(self, key: Key[Array, ""] | None = None, num: int = 1000) -> "Summary":
        """Mean, standard deviation and quantiles of every number of the latent, on the scale its user reads.

        Args:
            key: for the samples; a fixed one by default.
            num: samples; the error of a mean is the standard deviation over the root of their number.
        """
        from quell.diagnostics import summarise

        return summarise(self.sample(_or_fixed(key), num))

    def elbo(self, key: Key[Array, ""] | None = None, num: int = 1000) -> "Estimate":
        """The ELBO in nats over all data, with its standard error, which is 0 where `exact_elbo` knows it.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, where they are needed.
        """
        from quell.diagnostics import estimate_elbo

        return estimate_elbo(_or_fixed(key), self.problem, self.params, num=num)

    def khat(self, key: Key[Array, ""] | None = None, num: int = 1000) -> "Khat":
        """How far the fitted distribution can be trusted, with advice.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, at least 25.
        """
        from quell.diagnostics import estimate_khat

        return estimate_khat(_or_fixed(key), self.problem, self.params, num=num)

    def to_arviz(
        self, key: Key[Array, ""] | None = None, num: int = 1000, *, log_likelihood: bool | None = None
    ) -> Any:
        """Samples and history for ArviZ.

        The group `posterior` has the values of `sample`, by name; `sample_stats` has `lp` and `log_q`, the log
        densities under p and q; `fit` has the history; `log_likelihood` has that of each datum. The attributes tell
        status, seconds, k-hat and quell's version.

        Args:
            key: for the samples; a fixed one by default.
            num: samples, at least 25.
            log_likelihood: whether to store that of each datum at each sample; by default where these are at most ten
                million numbers.

        Returns:
            An `InferenceData` of ArviZ before 1.0, a `DataTree` of xarray from then on.
        """
        from quell.adapters.arviz import to_arviz

        return to_arviz(self, _or_fixed(key), num, log_likelihood=log_likelihood)

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
        """Result, time, ELBO, variance removed and weights, one line each."""
        problem, history = self.problem, self.history
        elbo, error = history.tail_elbo()
        spread = f" ± {error:.2f}" if math.isfinite(error) else ""
        lines = [
            f"FitResult({problem.family!r} for {problem.model!r})",
            f"  status   {self.status.name.lower()}: {self.status.value}",
            f"  steps    {history.num_steps:,} in {self.seconds:.2f} s",
            f"  elbo     {elbo:.2f}{spread} (mean of the last tenth of the estimates)",
        ]
        if self.choice is not None:
            lines.append(f"  chosen   {self.choice.reason}")
        if history.num_skipped:
            lines.append(f"  skipped  {history.num_skipped:,} steps, because they were not finite")
        if self.gradient.names and history.taken.num_steps:
            lines += self._variate_lines()
        return "\n".join(lines)

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


def _or_fixed(key: Key[Array, ""] | None) -> Key[Array, ""]:
    """A summary of a fit is the same each time, unless another key is given."""
    return jax.random.key(0) if key is None else key
