# SPDX-License-Identifier: Apache-2.0
"""The host's side of a compiled program that needs rows: reading them, and those of the next call ahead."""

import functools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from quell.data.npy_file import NpyFile

Leaves = tuple[np.ndarray, ...]


class _Request(NamedTuple):
    """Row numbers, which are a `range` if they are a block, and the shape of the index that they came in."""

    rows: Sequence[int]
    shape: tuple[int, ...]


class RowReader:
    """Reads rows of several files, one call ahead.

    Rows that were read ahead are found by the row numbers of the next call; if it asks for others, these are read. So
    reading ahead never changes what is returned. JAX is not called here, because a callback that waits for the device
    may wait for itself.

    Args:
        files: that share their number of rows.
        dtypes: to return, one per file.
    """

    def __init__(self, files: tuple[NpyFile, ...], dtypes: tuple[np.dtype, ...]) -> None:
        """Nothing is read yet."""
        self.files, self.dtypes = files, dtypes
        self._ahead: tuple[_Request, Future[Leaves]] | None = None

    def take(self, index: ArrayLike, upcoming: ArrayLike | None = None) -> Leaves:
        """Rows of an index of any shape; those of the `upcoming` call are read in the background."""
        return self._get(_of_index(index), None if upcoming is None else _of_index(upcoming))

    def slice(self, start: ArrayLike, *, size: int) -> Leaves:
        """Rows `start` to `start + size`; those that follow, or the first ones, are read in the background."""
        first, num = int(np.asarray(start)), self.files[0].shape[0]
        following = min(first + size, num - size) if first + size < num else 0
        now, later = (_Request(range(begin, begin + size), (size,)) for begin in (first, following))
        return self._get(now, later)

    def _get(self, now: _Request, later: _Request | None) -> Leaves:
        ahead, self._ahead = self._ahead, None
        rows = ahead[1].result() if ahead is not None and ahead[0] == now else self._read(now)
        if later is not None:
            self._ahead = later, _done(rows) if later == now else _worker().submit(self._read, later)
        return rows

    def _read(self, request: _Request) -> Leaves:
        rows, shape = request
        found = [
            file.read(rows.start, len(rows)) if isinstance(rows, range) else file.take(rows) for file in self.files
        ]
        return tuple(
            array.astype(dtype, copy=False).reshape(*shape, *array.shape[1:])
            for array, dtype in zip(found, self.dtypes, strict=True)
        )


@functools.lru_cache(maxsize=32)
def reader_of(files: tuple[NpyFile, ...], dtypes: tuple[np.dtype, ...]) -> RowReader:
    """One reader for the same files and dtypes."""
    return RowReader(files, dtypes)


@functools.cache
def _worker() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="quell-rows")


def _done(rows: Leaves) -> "Future[Leaves]":
    future: Future[Leaves] = Future()
    future.set_result(rows)
    return future


def _of_index(index: ArrayLike) -> _Request:
    numbers = np.asarray(index)
    return _Request(tuple(numbers.ravel().tolist()), numbers.shape)
