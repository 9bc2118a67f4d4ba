# SPDX-License-Identifier: Apache-2.0
"""Access to rows, whether arrays in memory or files on disk: the one place that tells them apart."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from quell.core.devices import constrain_state, spread
from quell.core.numbers import check_width
from quell.data.disk_rows import DiskRows

CHECKED_ROWS = 2**16
"""Rows per block of a check at most, which may hold several copies of a block in double precision."""

_CHECKED: set[Any] = set()


def on_disk(data: PyTree) -> bool:
    """Whether the data are files rather than arrays."""
    return isinstance(data, DiskRows)


def num_rows(data: PyTree) -> int:
    """Length of the leading axis that all arrays share."""
    return data.num_rows if isinstance(data, DiskRows) else jax.tree.leaves(data)[0].shape[0]


def most_rows(data: PyTree) -> int:
    """Rows that may be in memory at a time: all rows of arrays, as many as `max_bytes` allows of files."""
    return min(data.num_rows, data.most_rows) if isinstance(data, DiskRows) else num_rows(data)


def like_rows(data: PyTree, num: int) -> PyTree:
    """Shapes and dtypes of `num` rows, or of all if they are fewer; nothing is read."""
    num = min(num, num_rows(data))
    if isinstance(data, DiskRows):
        return data.like(num)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num, *leaf.shape[1:]), leaf.dtype), data)


def datum_size(data: PyTree) -> int:
    """Number of entries per row."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(like_rows(data, 1)))


def first_rows(data: PyTree, num: int) -> PyTree:
    """The first rows, as arrays."""
    return _read_rows(data, 0, num)


def pick_rows(data: PyTree, index: Int[np.ndarray, "row"]) -> PyTree:
    """Rows of an index, read now, outside of compiled programs."""
    if isinstance(data, DiskRows):
        return data.prepared([file.take(index.tolist()) for file in data.files])
    return jax.tree.map(lambda leaf: leaf[index], data)


def take_rows(data: PyTree, index: Int[Array, "..."], upcoming: Int[Array, "..."] | None = None) -> PyTree:
    """Rows of an index, sharded over the devices of the active mesh.

    Args:
        data: arrays, or files.
        index: row numbers.
        upcoming: row numbers of the next call; files are read ahead.
    """
    if isinstance(data, DiskRows):
        return data.take(index, upcoming)
    index = constrain_state(index)  # replicated: dividing so little work would take more messages than rows
    return spread(jax.tree.map(lambda leaf: leaf[index], data), leading=index.ndim)


def slice_rows(data: PyTree, start: Int[Array, ""], size: int) -> PyTree:
    """Rows `start` to `start + size`, where only the start is traced."""
    if isinstance(data, DiskRows):
        return data.slice(start, size)
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), data)


def row_blocks(data: PyTree, at_once: int) -> Iterator[tuple[int, PyTree]]:
    """All rows block by block, each with the number of its first row, for a loop outside of compiled programs."""
    num, size = num_rows(data), min(at_once, most_rows(data))
    for start in range(0, num, size):
        yield start, _read_rows(data, start, min(size, num - start))


def _read_rows(data: PyTree, start: int, num: int) -> PyTree:
    if isinstance(data, DiskRows):
        return data.read(start, num)
    return jax.tree.map(lambda leaf: leaf[start : start + num], data)


def check_disk_rows(rows: DiskRows, begin: Callable[[], Callable[[Any], None]]) -> None:
    """Pass all rows block by block to a function that raises on bad ones; the same check of the same files runs once.

    Args:
        rows: to check.
        begin: makes a function that raises a `ValueError` on a bad block; itself defined once, at module level.

    Raises:
        ValueError: of the first bad block, with its row numbers.
    """
    seen = (begin, rows.files, rows.structure, rows.prepare, rows.dtypes)
    if seen in _CHECKED:
        return
    check = begin()
    size = min(rows.most_rows, CHECKED_ROWS)
    for start in range(0, rows.num_rows, size):
        num = min(size, rows.num_rows - start)
        try:
            _check_block(rows, [file.read(start, num) for file in rows.files], check)
        except ValueError as error:
            raise ValueError(f"In rows {start} to {start + num} of {rows}: {error}") from None
    _CHECKED.add(seen)


def _check_block(rows: DiskRows, arrays: list[np.ndarray], check: Callable[[Any], None]) -> None:
    for name, array in zip(rows.names, arrays, strict=True):
        check_width(name, array)
    # Checks of NumPy arrays are several times faster.
    check(rows.structure.unflatten(arrays) if rows.prepare is None else rows.prepared(arrays))
