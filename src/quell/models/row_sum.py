# SPDX-License-Identifier: Apache-2.0
"""Sums over all data in bounded memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from quell.core.devices import num_devices, spread
from quell.data.access import most_rows, num_rows, on_disk, slice_rows

RowFunction = Callable[[PyTree, Bool[Array, "datum"]], Any]
"""A function of some rows and of which of them count; what it returns is summed."""

ROWS_AT_ONCE = 4096
"""Rows in memory at a time, with what a model makes of them, where a pass over all data takes them."""

NUMBERS_AT_ONCE = 2**22
"""Numbers of them: where rows are very long, there are fewer of them at a time."""

ON_ACCELERATORS = 2**18, 2**26
"""Rows and numbers of a linear predictor there: small chunks would leave it idle. On a mesh each chunk agrees on how
many nodes to take, so that fewer of them wait less."""


def rows_for(dim: int) -> int:
    """Rows at a time, where a pass keeps a few numbers for each coordinate of each row."""
    here = ROWS_AT_ONCE, NUMBERS_AT_ONCE
    rows, numbers = here if jax.default_backend() == "cpu" else ON_ACCELERATORS
    return max(1, min(rows, numbers // dim))


def sum_over_rows(function: RowFunction, data: PyTree, *, at_once: int) -> Any:
    """Sum a function over all data, `at_once` rows at a time.

    The last chunk begins so early that it is full, and its rows that were seen before do not count. So nothing is
    padded, and one compiled body serves all chunks. Where derivatives need a chunk again it is read and computed anew,
    since kept chunks would be all data; of a single chunk in memory all is kept.

    Args:
        function: of (rows, counts); a sum over those rows that count.
        data: a tree of arrays that share their leading axis, or rows on disk.
        at_once: rows in memory of a device at a time, with whatever the function makes of them; fewer where rows on
            disk say so.
    """
    groups = num_devices()
    if groups == 1 or on_disk(data) or num_rows(data) % groups:
        return _sum(function, data, at_once)
    # Each device goes through its own rows; what it has found is summed over devices at the end.
    own = jax.tree.map(lambda leaf: leaf.reshape(groups, -1, *leaf.shape[1:]), data)
    totals = jax.vmap(lambda rows: _sum(function, rows, at_once))(spread(own))
    return jax.tree.map(lambda total: jnp.sum(total, axis=0), totals)


def _sum(function: RowFunction, data: PyTree, at_once: int) -> Any:
    num = num_rows(data)
    size = min(most_rows(data), max(1, at_once))
    if size == num and not on_disk(data):
        return function(data, jnp.ones(num, bool))

    def chunk(start: Array) -> Any:
        first = jnp.minimum(start, num - size)
        return function(slice_rows(data, first, size), first + jnp.arange(size) >= start)

    of_chunk = jax.checkpoint(chunk)  # derivatives keep nothing of it

    def add(total: Any, start: Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, of_chunk(start)), None

    starts = jnp.arange(0, num, size)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(chunk, starts[0]))
    return jax.lax.scan(add, zeros, starts)[0]
