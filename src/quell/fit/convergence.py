# SPDX-License-Identifier: Apache-2.0
"""When a fit has converged: by the noisy estimates of its ELBO, or by its natural gradient where that has no noise."""

import math

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell.core.checks import check_count, check_positive
from quell.core.compilation import quick_jit
from quell.fit.history import History
from quell.fit.natural_gradient import natural_sq_norm
from quell.gradient import Gradient

_NUM_BATCHES = 8


class EarlyStopping(eqx.Module):
    r"""End a fit when more steps are not worth their time.

    At step \(t\) the mean of the ELBO estimates over the last quarter of the fit is compared with the mean over the
    quarter before it. The improvement \(\delta\) has a standard error \(s\), taken from the means of batches
    because neighbouring estimates depend on each other. The fit ends when \(\max(\delta, 0) + k s\) is below the
    tolerance at several checks in a row: not only must the improvement be small, we must be sure that it is. Noise
    makes a fit longer, never shorter.

    The windows grow with the fit. So a slow fit is not taken for a converged one, and any noise is averaged out in
    the end: estimates with standard deviation \(\sigma\) need about \(8 (k \sigma / \text{tolerance})^2\) steps.

    The decision is a function of the history alone and is taken at multiples of `check_every`, not by the
    clock; so an interrupted fit that is resumed stops at the same step.

    It suits a constant learning rate, best with `average_from`. With a rate that falls to zero over `steps`, as the
    default one does, the ELBO improves as long as the rate falls: the fit then ends late, or at a rate that has not
    fallen yet.

    Args:
        tolerance: in nats; an improvement below it over a quarter of the fit is not worth the time.
        min_steps: before any decision.
        check_every: steps between two decisions.
        patience: how many decisions in a row must agree.
        standard_errors: \(k\), how sure to be; 2 is about 98% for each decision.

    Example:
        >>> import numpy as np, quell
        >>> noise = np.random.default_rng(0).normal(size=2000)
        >>> stopping = quell.EarlyStopping(tolerance=0.5)
        >>> stopping.is_over(-100 + noise), stopping.is_over(0.01 * np.arange(2000) + noise)
        (True, False)
    """

    tolerance: float = 0.5
    min_steps: int = 500
    check_every: int = 100
    patience: int = 3
    standard_errors: float = 2.0

    def __check_init__(self) -> None:
        """Refuse numbers that are not positive."""
        check_positive("tolerance", self.tolerance)
        check_count("min_steps", self.min_steps)
        check_count("check_every", self.check_every)
        check_count("patience", self.patience)
        check_positive("standard_errors", self.standard_errors)

    def is_over(self, elbo: Float[np.ndarray, "step"]) -> bool:
        """Whether a fit with these estimates, one per step, should end after the last of them."""
        ends = [elbo.size - back * self.check_every for back in range(self.patience)]
        return ends[-1] >= max(self.min_steps, 1) and all(self._is_flat(elbo[:end]) for end in ends)

    def _is_flat(self, elbo: Float[np.ndarray, "step"]) -> bool:
        """Whether the last quarter is surely no better than the one before it; not where there are too few steps."""
        before, after = (_mean_and_error(half) for half in np.split(elbo[-2 * (elbo.size // 4) :], 2))
        error = math.hypot(before[1], after[1])
        return max(after[0] - before[0], 0.0) + self.standard_errors * error < self.tolerance


def _mean_and_error(values: Float[np.ndarray, "step"]) -> tuple[float, float]:
    """Mean with the standard error of batch means; steps that were not finite are left out."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size < 2 * _NUM_BATCHES:
        return math.nan, math.nan
    size = finite.size // _NUM_BATCHES
    batches = finite[finite.size - size * _NUM_BATCHES :].reshape(_NUM_BATCHES, size).mean(axis=1)
    return float(finite.mean()), float(batches.std(ddof=1) / math.sqrt(_NUM_BATCHES))


def has_no_gain(gradient: Gradient, params: PyTree, recent: History, least: float) -> bool:
    """Whether the next step of an exact fit can gain less than some nats.

    Near an optimum that is half the squared norm of the natural gradient. A step that was skipped, or that was not
    finite, is no sign of convergence.

    Args:
        gradient: without noise.
        params: where the fit stands.
        recent: history that ends with its last step.
        least: the nats.
    """
    if not recent.num_steps or recent.skipped[-1] or not np.isfinite(recent.base_sq_norm[-1]):
        return False
    if gradient.rule.metric == "natural":
        return 0.5 * float(recent.combined_sq_norm[-1]) < least
    return float(_gain(gradient, params)) < least


@quick_jit
def _gain(gradient: Gradient, params: PyTree) -> Float[Array, ""]:
    """Nats that a step can gain, for a family whose moments are not in nats: one more exact gradient."""
    loss_grad, _, _ = gradient.update(jax.random.key(0), params, gradient.init(params))
    return 0.5 * natural_sq_norm(gradient.problem, params, loss_grad)
