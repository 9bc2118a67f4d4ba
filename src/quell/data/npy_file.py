# SPDX-License-Identifier: Apache-2.0
"""One array in a .npy file: what its header says, and rows read from it without mapping it."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

KINDS = "biuf"
"""Truth values, integers with and without sign, and floating point."""


@dataclasses.dataclass(frozen=True)
class NpyFile:
    """An array of rows on disk, as it was when it was opened.

    Rows are read into fresh memory. Pages of a memory map would count as memory of the process, and a file that
    was cut short would end the process instead of raising an error.

    Args:
        path: of the file, absolute.
        dtype: of the entries.
        shape: of the array; the first axis is the rows.
        offset: bytes of the header.
        num_bytes: of the whole file.
        changed_ns: when the file was changed last.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    changed_ns: int

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in the file."""
        return int(np.prod(self.row_shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @property
    def read_dtype(self) -> np.dtype:
        """The dtype that JAX has for the entries; it depends on JAX's precision where it is asked."""
        return np.dtype(jax.dtypes.canonicalize_dtype(np.dtype(self.dtype).newbyteorder("=")))

    @property
    def digest(self) -> str:
        """What a checkpoint compares: the header, the size and the time of the last change, not the path."""
        return f"{self.dtype}{list(self.shape)} {self.num_bytes} bytes of {self.changed_ns}"

    def read(self, start: int, num: int) -> np.ndarray:
        """Rows `start` to `start + num`, in the dtype of the file."""
        handle = self._open()
        try:
            raw = np.empty(num * self.row_bytes, np.uint8)
            self._fill(handle, raw.data, self.offset + start * self.row_bytes)
        finally:
            os.close(handle)
        return self._rows(raw, num)

    def take(self, index: Sequence[int]) -> np.ndarray:
        """The rows of an index, one read each, in the order in which they lie on the disk."""
        size, handle = self.row_bytes, self._open()
        try:
            raw = np.empty(len(index) * size, np.uint8)
            view = raw.data
            for place in np.argsort(np.asarray(index), kind="stable").tolist():
                self._fill(handle, view[place * size : (place + 1) * size], self.offset + index[place] * size)
        finally:
            os.close(handle)
        return self._rows(raw, len(index))

    def _open(self) -> int:
        try:
            handle = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read any more ({error.strerror}). The file that the rows were made from was "
                "needed. Put it back, and resume from a checkpoint."
            ) from error
        status = os.fstat(handle)
        if (status.st_size, status.st_mtime_ns) != (self.num_bytes, self.changed_ns):
            os.close(handle)
            raise ValueError(
                f"{self.path} has changed since the rows were made from it: {status.st_size} bytes instead of "
                f"{self.num_bytes}, or another time. The same file was needed. Make the rows and the model anew."
            )
        return handle

    def _fill(self, handle: int, view: memoryview, offset: int) -> None:
        while view.nbytes:
            done = os.preadv(handle, [view], offset)
            if not done:
                raise ValueError(f"{self.path} ends before byte {offset}. A whole file was needed. Write it again.")
            view, offset = view[done:], offset + done

    def _rows(self, raw: np.ndarray, num: int) -> np.ndarray:
        return raw.view(self.dtype).reshape(num, *self.row_shape)


def open_npy(given: Any) -> NpyFile:
    """Read the header of a .npy file; refuse what cannot be read row by row."""
    if isinstance(given, np.memmap):
        return _of_memmap(given)
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"A source of rows was given as {type(given).__name__}. The path of a .npy file was needed. Write for "
            "example `quell.DiskRows({'features': 'x.npy', 'targets': 'y.npy'})`, or give the model arrays."
        )
    path = Path(given).absolute()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path} was given as a source of rows. A file that is there was needed. "
            "Write it for example with `numpy.save`, or with `quell.rows_from_iterator`."
        ) from None
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise ValueError(
            f"{path} was given as a source of rows and cannot be read as one ({error}). A whole .npy file of numbers "
            "was needed. Write it for example with `numpy.save(path, array)`."
        ) from error
    if not isinstance(array, np.memmap):  # an archive of several arrays
        array.close()
        raise ValueError(
            f"{path} was given as a source of rows and holds several arrays. A .npy file with one was needed. "
            "Write each of them with `numpy.save`."
        )
    _check(path, array)
    status = os.stat(path)
    return NpyFile(str(path), array.dtype.str, array.shape, array.offset, status.st_size, status.st_mtime_ns)


def _of_memmap(given: np.memmap) -> NpyFile:
    name = getattr(given, "filename", None)
    found = None if name is None else open_npy(name)
    is_whole = found is not None and (found.shape, found.dtype) == (given.shape, given.dtype.str)
    if found is None or not is_whole or not given.flags.c_contiguous:
        raise ValueError(
            f"A memory map of shape {given.shape} was given that is not the whole of its file ({name}), or is in "
            "another order. A whole .npy file was needed. Write the part that you want with `numpy.save`, and give "
            "its path."
        )
    return found


def _check(path: Path, array: np.memmap) -> None:
    if array.dtype.kind not in KINDS or array.dtype.itemsize > 8:
        raise ValueError(
            f"{path} was given with entries of dtype {array.dtype}. Numbers of at most 64 bits, or truth values, were "
            "needed. Write for example `numpy.save(path, array.astype('float32'))`."
        )
    if array.ndim == 0 or 0 in array.shape:
        raise ValueError(
            f"{path} was given with an array of shape {array.shape}. At least one row, along the first axis, and one "
            "number in it were needed. Write for example `numpy.save(path, array.reshape(-1, 1))`."
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{path} was given with an array in Fortran order, whose rows do not lie together. C order was needed. "
            "Write `numpy.save(path, numpy.ascontiguousarray(array))`."
        )
