# SPDX-License-Identifier: Apache-2.0
"""Per-step diagnostics of a fit, on the host."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from quell.gradient import GradientInfo


class History(NamedTuple):
    """Per-step diagnostics as NumPy arrays, one entry per step; see `GradientInfo` for their meaning.

    Weights are in the order of `Gradient.weight_names`. A step that was skipped has an entry too, with `skipped` set
    and numbers that may be NaN or infinite.
    """

    elbo: Float[np.ndarray, "step"]
    base_sq_norm: Float[np.ndarray, "step"]
    combined_sq_norm: Float[np.ndarray, "step"]
    weights: Float[np.ndarray, "step weight"]
    dropped: Bool[np.ndarray, "step variate"]
    skipped: Bool[np.ndarray, "step"]

    @classmethod
    def empty(cls, num_variates: int, num_weights: int) -> "History":
        """Of a fit that has not begun yet."""
        none = np.zeros(0)
        dropped = np.zeros((0, num_variates), bool)
        return cls(none, none, none, np.zeros((0, num_weights)), dropped, np.zeros(0, bool))

    @classmethod
    def from_info(cls, info: GradientInfo, skipped: Any) -> "History":
        """The entry of one step, of JAX's arrays; weights by leaf stand in one row."""
        norms, weights = (info.base_sq_norm, info.combined_sq_norm), info.weights.reshape(-1)
        entry: Any = (info.elbo, *norms, weights, info.dropped, skipped)
        return cls(*entry)

    @classmethod
    def join(cls, pieces: Sequence["History"]) -> "History":
        """One history from pieces that follow each other; an empty one takes the dtype of the others."""
        filled = [piece for piece in pieces if piece.num_steps] or list(pieces[:1])
        return cls(*(np.concatenate([getattr(piece, name) for piece in filled]) for name in cls._fields))

    def with_variates(self, num_variates: int, num_weights: int) -> "History":
        """The history of steps without variates, with columns for those that later steps use: weights of zero."""
        weights = np.zeros((self.num_steps, num_weights), self.weights.dtype)
        return self._replace(weights=weights, dropped=np.zeros((self.num_steps, num_variates), bool))

    @property
    def num_steps(self) -> int:
        """Number of steps, skipped ones included."""
        return self.elbo.shape[0]

    @property
    def num_skipped(self) -> int:
        """Number of steps that were not taken because they were not finite."""
        return int(self.skipped.sum())

    @property
    def taken(self) -> "History":
        """The same without the steps that were skipped."""
        return History(*(values[~self.skipped] for values in self))

    def tail_elbo(self, *, fraction: float = 0.1) -> tuple[float, float]:
        """Mean and standard error of the noisy ELBO estimates over the last part of the fit, skipped steps left out."""
        rows = slice(-max(1, math.ceil(fraction * self.num_steps)), None)
        tail = self.elbo[rows][~self.skipped[rows]]
        if tail.size < 2:
            return (float(tail[0]) if tail.size else math.nan), math.nan
        return float(tail.mean()), float(tail.std(ddof=1) / math.sqrt(tail.size))
