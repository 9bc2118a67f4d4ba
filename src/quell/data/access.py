# SPDX-License-Identifier: Apache-2.0
"""Rows of data, whether arrays in memory or files on disk: the one place that tells them apart."""

import math
from collections.abc import Iterator

import jax
from jaxtyping import Array, Int, PyTree

from quell.core.devices import constrain_state, spread
from quell.data.disk_rows import DiskRows


def on_disk(data: PyTree) -> bool:
    """Whether the data are files rather than arrays."""
    return isinstance(data, DiskRows)


def num_rows(data: PyTree) -> int:
    """Length of the leading axis that all arrays share."""
    return data.num_rows if isinstance(data, DiskRows) else jax.tree.leaves(data)[0].shape[0]


def most_rows(data: PyTree) -> int:
    """Rows that may be in memory at a time: all of arrays, and as many as `max_bytes` allows of files."""
    return min(data.num_rows, data.most_rows) if isinstance(data, DiskRows) else num_rows(data)


def like_rows(data: PyTree, num: int) -> PyTree:
    """Shapes and dtypes of as many rows, or of all if they are fewer; nothing is read."""
    num = min(num, num_rows(data))
    if isinstance(data, DiskRows):
        return data.like(num)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num, *leaf.shape[1:]), leaf.dtype), data)


def datum_size(data: PyTree) -> int:
    """Numbers in a row."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like_rows(data, 1)))


def first_rows(data: PyTree, num: int) -> PyTree:
    """The first rows, as arrays."""
    return data.read(0, num) if isinstance(data, DiskRows) else jax.tree.map(lambda leaf: leaf[:num], data)


def take_rows(data: PyTree, index: Int[Array, "..."], upcoming: Int[Array, "..."] | None = None) -> PyTree:
    """Rows of an index, spread over the devices of the mesh in use.

    Args:
        data: arrays, or files.
        index: numbers of rows.
        upcoming: those that will be asked for next; files read them meanwhile.
    """
    if isinstance(data, DiskRows):
        return data.take(index, upcoming)
    index = constrain_state(index)  # drawn on each device: to divide so little work would take more messages than rows
    return spread(jax.tree.map(lambda leaf: leaf[index], data), leading=index.ndim)


def slice_rows(data: PyTree, start: Int[Array, ""], size: int) -> PyTree:
    """Rows `start` to `start + size`, where only the start is traced."""
    if isinstance(data, DiskRows):
        return data.slice(start, size)
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), data)


def row_blocks(data: PyTree, at_once: int) -> Iterator[tuple[int, PyTree]]:
    """All rows a block at a time, each with the number of its first row, for a loop outside of compiled programs."""
    num, size = num_rows(data), min(at_once, most_rows(data))
    for start in range(0, num, size):
        stop = min(start + size, num)
        if isinstance(data, DiskRows):
            yield start, data.read(start, stop - start)
        else:
            yield start, jax.tree.map(lambda leaf, a=start, b=stop: leaf[a:b], data)
