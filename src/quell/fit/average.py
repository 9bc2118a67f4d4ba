# SPDX-License-Identifier: Apache-2.0
"""The average of the last part of the iterates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree


class TailAverage(eqx.Module):
    """A running average of parameters.

    Args:
        mean: of the iterates taken in so far, shaped like the parameters.
        count: how many they are.

    References: Polyak & Juditsky (1992), "Acceleration of stochastic approximation by averaging".
    """

    mean: PyTree
    count: Int[Array, ""]

    @classmethod
    def empty(cls, params: PyTree) -> "TailAverage":
        """Nothing taken in yet."""
        return cls(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def include(self, params: PyTree, wanted: Bool[Array, ""]) -> "TailAverage":
        """Take in one iterate, or leave the average as it is."""
        count = self.count + wanted

        def moved(old: Array, new: Array) -> Array:
            return jnp.where(wanted, old + (new - old) / jnp.maximum(count, 1).astype(old.dtype), old)

        return TailAverage(jax.tree.map(moved, self.mean, params), count)

    def or_last(self, params: PyTree) -> PyTree:
        """The average, or the last iterate where nothing was taken in."""
        return jax.tree.map(lambda mean, last: jnp.where(self.count > 0, mean, last), self.mean, params)
