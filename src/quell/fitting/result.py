# SPDX-License-Identifier: Apache-2.0
"""What a fit returns."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.checks import check_count, check_key
from quell.gradient import Gradient, GradientState
from quell.history import History
from quell.problem import Problem
from quell.status import Status


class FitResult(eqx.Module):
    """A fitted approximation of the posterior.

    Args:
        params: of the family, where the fit ended.
        gradient: the problem, the variates and the settings of the fit.
        state: of the gradient, where the fit ended.
        history: one entry a step.
        status: how the fit ended, with advice.
        seconds: wall-clock time, compilation included.
    """

    params: PyTree
    gradient: Gradient
    state: GradientState
    history: History
    status: Status
    seconds: float

    @property
    def problem(self) -> Problem:
        """The model and the family that were fitted."""
        return self.gradient.problem

    @property
    def mean(self) -> Any:
        """Mean of the fitted distribution, in the shape the model takes."""
        return self.problem.model.unravel(self.problem.family.mean(self.params))

    @property
    def std(self) -> Any:
        """Standard deviation of each coordinate, in the shape the model takes."""
        return self.problem.model.unravel(jnp.sqrt(self.problem.family.variance(self.params)))

    def sample(self, key: Key[Array, ""], num: int) -> Any:
        """Draw latents from the fitted distribution, in the shape the model takes, with a leading axis."""
        check_key(key)
        check_count("num", num)
        return jax.vmap(self.problem.model.constrain)(self.sample_flat(key, num))

    def sample_flat(self, key: Key[Array, ""], num: int) -> Float[Array, "sample latent"]:
        """Draw flat latents."""
        check_key(key)
        family = self.problem.family
        noise = family.noise(key, num, jax.tree.leaves(self.params)[0].dtype)
        return family.particles(self.params, noise).latents(family.sampling)

    def __repr__(self) -> str:
        """Result, time, ELBO, noise removed and weights, a line each."""
        problem, history = self.problem, self.history
        elbo, error = history.tail_elbo()
        lines = [
            f"FitResult({problem.family!r} for {problem.model!r})",
            f"  status   {self.status.name.lower()}: {self.status.value}",
            f"  steps    {history.num_steps:,} in {self.seconds:.2f} s",
            f"  elbo     {elbo:.2f} ± {error:.2f} (mean of the last tenth of the estimates)",
        ]
        if self.gradient.names and history.num_steps:
            lines += self._quiet_lines()
        return "\n".join(lines)

    def _quiet_lines(self) -> list[str]:
        tail = slice(-max(1, self.history.num_steps // 10), None)
        base, combined = (
            float(np.mean(values[tail])) for values in (self.history.base_sq_norm, self.history.combined_sq_norm)
        )
        weights = self.history.weights[tail].mean(axis=0)
        listed = ", ".join(f"{n} {w:+.2f}" for n, w in zip(self.gradient.names, weights, strict=True))
        lines = [
            f"  gradient squared norm {combined:.3g}, {base / max(combined, 1e-300):.1f} times below the base gradient",
            f"  weights  {listed}",
        ]
        dropped = self.history.dropped.sum(axis=0)
        if dropped.any():
            counts = ", ".join(f"{n} {c}" for n, c in zip(self.gradient.names, dropped, strict=True) if c)
            lines.append(f"  dropped  {counts} times, because they were not finite")
        return lines
