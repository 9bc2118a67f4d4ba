# SPDX-License-Identifier: Apache-2.0
"""A number with its standard error."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error.

    Attributes:
        value: the estimate.
        standard_error: of the value; 0 if it is exact, NaN if it is unknown.

    Example:
        >>> import quell
        >>> quell.diagnostics.Estimate(-12.3456, 0.051)
        -12.346 ± 0.051
    """

    value: float
    standard_error: float

    @property
    def is_exact(self) -> bool:
        """Whether the value was computed without draws."""
        return self.standard_error == 0.0

    def __repr__(self) -> str:
        """With the digits that the standard error leaves."""
        if self.is_exact or not (math.isfinite(self.value) and math.isfinite(self.standard_error)):
            return f"{self.value:.6g}"
        digits = min(12, max(0, 1 - math.floor(math.log10(self.standard_error))))
        if digits > 6:
            return f"{self.value:.4g} ± {self.standard_error:.1g}"
        return f"{self.value:.{digits}f} ± {self.standard_error:.{digits}f}"


def mean_of(values: Float[np.ndarray, "group"]) -> Estimate:
    """The average of independent values."""
    error = float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else math.nan
    return Estimate(float(values.mean()), error)


def ratio_of(above: Float[np.ndarray, "group"], below: Float[np.ndarray, "group"]) -> Estimate:
    """The ratio of two averages over the same independent groups; its error by the delta method."""
    top, mean = float(above.mean()), float(below.mean())
    if mean == 0.0 or not math.isfinite(top + mean):
        return Estimate(math.inf if mean == 0.0 and top > 0 else math.nan, math.nan)
    value = top / mean
    return Estimate(value, mean_of(above - value * below).standard_error / mean)
