# SPDX-License-Identifier: Apache-2.0
"""Stop when the ELBO no longer improves, as far as its noise lets one see."""

import math

import equinox as eqx
import numpy as np
from jaxtyping import Float

from quell.core.checks import check_count, check_positive

_NUM_BATCHES = 8


class EarlyStopping(eqx.Module):
    r"""End a fit when more steps are not worth their time.

    At step \(t\) the mean of the ELBO estimates over the last quarter of the fit is compared with the mean over the
    quarter before it. The improvement \(\delta\) has a standard error \(s\), taken from the means of batches
    because neighbouring estimates depend on each other. The fit ends when \(\max(\delta, 0) + k s\) is below the
    tolerance at several checks in a row: not only must the improvement be small, we must be sure that it is. Noise
    makes a fit longer, never shorter.

    The windows grow with the fit. So a slow fit is not taken for one that has arrived, and any noise is averaged
    out in the end: estimates with standard deviation \(\sigma\) need about \(8 (k \sigma / \text{tolerance})^2\) steps.

    The decision is a function of the history alone and is taken at multiples of `check_every`, whatever the clock
    says; so an interrupted fit that is resumed stops at the same step.

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
        """Whether a fit with these estimates, one a step, should end after the last of them."""
        ends = [elbo.size - back * self.check_every for back in range(self.patience)]
        return ends[-1] >= max(self.min_steps, 1) and all(self._is_flat(elbo[:end]) for end in ends)

    def improvement(self, elbo: Float[np.ndarray, "step"]) -> tuple[float, float]:
        """Difference of the last two quarters in nats, and its standard error; NaN where there are too few steps."""
        window = elbo.size // 4
        means, errors = zip(
            *(_mean_and_error(elbo[elbo.size - k * window : elbo.size - (k - 1) * window]) for k in (2, 1)), strict=True
        )
        return means[1] - means[0], math.hypot(*errors)

    def _is_flat(self, elbo: Float[np.ndarray, "step"]) -> bool:
        difference, error = self.improvement(elbo)
        return max(difference, 0.0) + self.standard_errors * error < self.tolerance


def _mean_and_error(values: Float[np.ndarray, "step"]) -> tuple[float, float]:
    """Mean with the standard error of batch means; steps that were not finite are left out."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size < 2 * _NUM_BATCHES:
        return math.nan, math.nan
    size = finite.size // _NUM_BATCHES
    batches = finite[finite.size - size * _NUM_BATCHES :].reshape(_NUM_BATCHES, size).mean(axis=1)
    return float(finite.mean()), float(batches.std(ddof=1) / math.sqrt(_NUM_BATCHES))
