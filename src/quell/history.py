# SPDX-License-Identifier: Apache-2.0
"""What a fit remembers of its steps."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from quell.gradient import GradientInfo


class History(NamedTuple):
    """One entry a step, as NumPy arrays; see `GradientInfo` for their meaning."""

    elbo: Float[np.ndarray, "step"]
    base_sq_norm: Float[np.ndarray, "step"]
    combined_sq_norm: Float[np.ndarray, "step"]
    weights: Float[np.ndarray, "step variate"]
    dropped: Bool[np.ndarray, "step variate"]

    @classmethod
    def join(cls, pieces: list[GradientInfo], num_variates: int) -> "History":
        """One history from the pieces that the chunks of a fit returned."""
        if not pieces:
            none = np.zeros(0)
            return cls(none, none, none, np.zeros((0, num_variates)), np.zeros((0, num_variates), bool))
        return cls(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in cls._fields))

    @property
    def num_steps(self) -> int:
        """Number of steps taken."""
        return self.elbo.shape[0]

    def tail_elbo(self, *, fraction: float = 0.1) -> tuple[float, float]:
        """Mean and standard error of the noisy ELBO estimates over the last part of the fit."""
        tail = self.elbo[-max(1, math.ceil(fraction * self.num_steps)) :]
        if tail.size < 2:
            return (float(tail[0]) if tail.size else math.nan), math.nan
        return float(tail.mean()), float(tail.std(ddof=1) / math.sqrt(tail.size))
