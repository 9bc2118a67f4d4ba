# SPDX-License-Identifier: Apache-2.0
"""Expected log-likelihoods of some data under a Gaussian, by the structure of the model."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from quell.evaluation.expectation import USUAL_LEVEL, Group
from quell.families.gaussian import Gaussian
from quell.structure import Structure


class RowExpectation(eqx.Module):
    """The expected log-likelihood of any data, without constants.

    Args:
        groups: of addends.
        places: of the addends of each datum in each group; -1 for none.

    Bias: that of Gauss-Hermite sums of the fewest nodes.
    Cost: for each addend of the data its program at all nodes, and its linear functions of the covariance.
    """

    groups: tuple[Group, ...]
    places: tuple[Int[Array, "datum _"], ...]

    @classmethod
    def of(cls, structure: Structure, num_data: int, dtype: Any, *, has_variance: bool = True) -> "RowExpectation":
        """With arrays of a type.

        Args:
            structure: of the log-likelihoods of all data.
            num_data: how many they are.
            dtype: of the arrays.
            has_variance: whether the Gaussians have a variance beside their factor.
        """
        groups = tuple(Group.of(one, dtype, has_variance=has_variance) for one in structure.groups)
        return cls(groups, tuple(jnp.asarray(_places(one.row, num_data), jnp.int32) for one in structure.groups))

    def __call__(self, gaussian: Gaussian, index: Int[Array, "datum"] | None = None) -> Float[Array, ""]:
        """The sum over some data, or over all."""
        if index is None:
            parts = [group.expectation(gaussian, USUAL_LEVEL) for group in self.groups]
        else:
            pairs = zip(self.groups, self.places, strict=True)
            parts = [group.taken(places[index].ravel()).expectation(gaussian, USUAL_LEVEL) for group, places in pairs]
        return sum(parts, jnp.zeros((), gaussian.mean.dtype))


def _places(row: np.ndarray, num_data: int) -> np.ndarray:
    """Where the addends of each row are, with as many columns as a row has at most."""
    order, count = np.argsort(row, kind="stable"), np.bincount(row, minlength=num_data)
    column = np.arange(count.max(initial=0))
    place = np.minimum((np.cumsum(count) - count)[:, None] + column, row.size - 1)
    return np.where(column < count[:, None], order[place], -1)
