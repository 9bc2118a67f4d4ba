# SPDX-License-Identifier: Apache-2.0
"""Whether rows have the same log-likelihood alone as among other rows, which minibatches rely on."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from quell.core.tiers import tiered_jit
from quell.models.base import AbstractModel

Index = Int[np.ndarray, "_"]

_SLACK = 30.0
"""Rounding errors that two computations of one value may differ by."""

_LEAST = 1e-5
"""Differences in nats that never count."""


class RowDifference(NamedTuple):
    """Log-likelihoods of the same rows, at the latent where they differ most.

    Attributes:
        alone: in a batch of their own.
        among: in a larger batch.
    """

    alone: Float[np.ndarray, "row"]
    among: Float[np.ndarray, "row"]


def row_difference(
    evaluate: Callable[[Index], np.ndarray],
    among: Float[np.ndarray, "probe datum"],
    subsets: Iterable[Index],
    *,
    rtol: float,
    rounding: float = 0.0,
) -> RowDifference | None:
    """The first subset of rows whose values alone are not those among all rows; `None` if all agree.

    A value that is not finite, alone or among the others, says nothing. The tolerance is relative to the largest value
    of a subset, because a row may be near zero by cancellation.

    Args:
        evaluate: values of the rows of an index, in a batch of their own, at each of several latents.
        among: values of all rows, in one batch, at the same latents.
        subsets: row numbers.
        rtol: relative tolerance.
        rounding: size of the rounding errors of one value.

    Raises:
        ValueError: where a batch does not give one value per row.
    """
    for index in subsets:
        alone, expected = np.asarray(evaluate(index)), among[:, index]
        gap, size = (np.max(values, axis=1) for values in (_known_gap(alone, expected), _known_gap(expected, 0.0)))
        if np.any(gap > rtol * size + _SLACK * rounding + _LEAST):
            return RowDifference(alone[np.argmax(gap)], expected[np.argmax(gap)])
    return None


def _known_gap(one: np.ndarray, two: np.ndarray | float) -> np.ndarray:
    """The absolute difference where both are finite, zero elsewhere."""
    is_known = np.isfinite(one) & np.isfinite(two)
    return np.abs(np.where(is_known, one, 0.0) - np.where(is_known, two, 0.0))


def random_subsets(num_rows: int, sizes: Iterable[int]) -> list[Index]:
    """Random rows in random order, the same in every run: one subset per size that leaves out a row."""
    rng = np.random.default_rng(0)
    return [rng.choice(num_rows, size, replace=False) for size in sizes if 0 < size < num_rows]


def halves(num_rows: int) -> list[Index]:
    """Two random halves of equal size, in random order and the same in every run; of an odd number they share a row."""
    order, size = np.random.default_rng(0).permutation(num_rows), (num_rows + 1) // 2
    return [order[:size], order[-size:]]


def difference_in_batch(model: AbstractModel, batch: PyTree, subsets: Iterable[Index]) -> RowDifference | None:
    """The same for a model, whose rows are compared with themselves in a given batch, at two latents.

    Rounding is measured: by how much values change when the latent does by its last digit.

    Args:
        model: any.
        batch: rows, as arrays.
        subsets: row numbers within the batch.

    Cost: one small program per size, run at two latents for each subset.
    """
    rng, dtype = np.random.default_rng(0), jnp.result_type(float)
    z = 0.1 * rng.normal(size=model.dim).astype(dtype)  # by NumPy, because JAX would compile
    last_digits = jnp.finfo(dtype).eps * rng.choice([-1.0, 1.0], model.dim).astype(dtype)
    latents = np.stack([z, 0.5 + z])
    everything = np.arange(jax.tree.leaves(batch)[0].shape[0])
    among = _values(model, latents, batch, everything)
    nearby = _values(model, latents * (1 + last_digits), batch, everything)
    rounding = float(np.max(_known_gap(nearby, among)))
    return row_difference(
        lambda index: _values(model, latents, batch, index), among, subsets, rtol=1e-3, rounding=rounding
    )


def _values(
    model: AbstractModel, latents: Float[np.ndarray, "probe latent"], batch: PyTree, index: Index
) -> Float[np.ndarray, "probe row"]:
    """One evaluation after the other: on few cores, factorisations at the same time may wait for each other."""
    return np.stack([np.asarray(_log_likelihood(model, jnp.asarray(z), batch, jnp.asarray(index))) for z in latents])


@tiered_jit
def _log_likelihood(
    model: AbstractModel, z: Float[Array, "latent"], batch: PyTree, index: Int[Array, "row"]
) -> Float[Array, "row"]:
    return model.log_likelihood(z, jax.tree.map(lambda leaf: leaf[index], batch))
