# SPDX-License-Identifier: Apache-2.0
"""The host's side of a compiled program that needs rows: reading them, and those of the next call ahead."""

import functools
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import ArrayLike

from quell.data.npy_file import NpyFile

Leaves = tuple[np.ndarray, ...]


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
        self._lock = threading.Lock()
        self._ahead: tuple[Hashable, Future[Leaves]] | None = None

    def take(self, index: ArrayLike, upcoming: ArrayLike | None = None) -> Leaves:
        """Rows of an index of any shape; those of the `upcoming` call are read in the background."""
        now = np.asarray(index)
        if upcoming is None:
            return self._get(_key(now), lambda: self._take(now), None)
        later = np.asarray(upcoming)
        return self._get(_key(now), lambda: self._take(now), (_key(later), lambda: self._take(later)))

    def slice(self, start: ArrayLike, *, size: int) -> Leaves:
        """Rows `start` to `start + size`; those that follow, or the first ones, are read in the background."""
        first, num = int(np.asarray(start)), self.files[0].shape[0]
        following = min(first + size, num - size) if first + size < num else 0
        after = ((following, size), lambda: self._slice(following, size))
        return self._get((first, size), lambda: self._slice(first, size), after)

    def _get(
        self, key: Hashable, read: Callable[[], Leaves], after: tuple[Hashable, Callable[[], Leaves]] | None
    ) -> Leaves:
        with self._lock:
            ahead, self._ahead = self._ahead, None
        rows = ahead[1].result() if ahead is not None and ahead[0] == key else read()
        if after is not None:
            future = _done(rows) if after[0] == key else _worker().submit(after[1])
            with self._lock:
                self._ahead = after[0], future
        return rows

    def _take(self, index: np.ndarray) -> Leaves:
        numbers = index.ravel().tolist()
        found = self._cast([file.take(numbers) for file in self.files])
        return tuple(rows.reshape(*index.shape, *rows.shape[1:]) for rows in found)

    def _slice(self, start: int, size: int) -> Leaves:
        return self._cast([file.read(start, size) for file in self.files])

    def _cast(self, arrays: list[np.ndarray]) -> Leaves:
        return tuple(array.astype(dtype, copy=False) for array, dtype in zip(arrays, self.dtypes, strict=True))


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


def _key(index: np.ndarray) -> Hashable:
    return index.shape, index.tobytes()
