# SPDX-License-Identifier: Apache-2.0
"""One array in a .npy file: what its header says, and rows read from it without mapping it."""

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from quell.core.checks import first_line

KINDS = "biuf"
"""Booleans, signed and unsigned integers, and floating point."""


@dataclasses.dataclass(frozen=True)
class NpyFile:
    """An array of rows on disk, as it was when it was opened.

    Rows are read into fresh memory. Pages of a memory map would count as memory of the process, and a truncated file
    would kill the process instead of raising an error.

    Args:
        path: of the file, absolute.
        dtype: of the entries.
        shape: of the array; the first axis is the rows.
        offset: bytes of the header.
        num_bytes: of the whole file.
        changed_ns: time of its last modification.
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
        """Bytes per row in the file."""
        return math.prod(self.row_shape) * np.dtype(self.dtype).itemsize

    @property
    def read_dtype(self) -> np.dtype:
        """JAX's dtype for the entries, which depends on its precision at the time of the call."""
        return np.dtype(jax.dtypes.canonicalize_dtype(np.dtype(self.dtype).newbyteorder("=")))

    @property
    def digest(self) -> str:
        """What a checkpoint compares: header, size and modification time, not the path."""
        return f"{self.dtype}{list(self.shape)} {self.num_bytes} bytes of {self.changed_ns}"

    def read(self, start: int, num: int) -> np.ndarray:
        """Rows `start` to `start + num`, in the dtype of the file."""
        return self._read(num, [(0, start, num)])

    def take(self, index: Sequence[int]) -> np.ndarray:
        """The rows of an index, one read each, in their order on the disk."""
        order = np.argsort(np.asarray(index), kind="stable").tolist()
        return self._read(len(index), ((place, index[place], 1) for place in order))

    def _read(self, num: int, pieces: Iterable[tuple[int, int, int]]) -> np.ndarray:
        """Rows in fresh memory, from pieces: their place there, their first row in the file, and their number."""
        size, raw = self.row_bytes, np.empty(num * self.row_bytes, np.uint8)
        try:
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 closed below; only opening is explained so
        except OSError as error:
            raise ValueError(
                f"{self.path} cannot be read any more ({error.strerror}); restore it, and resume from a checkpoint."
            ) from error
        with file:
            self._check_unchanged(os.fstat(file.fileno()))
            for place, start, length in pieces:
                self._fill(file.fileno(), raw.data[place * size : (place + length) * size], self.offset + start * size)
        return raw.view(self.dtype).reshape(num, *self.row_shape)

    def _check_unchanged(self, status: os.stat_result) -> None:
        if (status.st_size, status.st_mtime_ns) != (self.num_bytes, self.changed_ns):
            raise ValueError(
                f"{self.path} must not change while it is in use, got {status.st_size} bytes instead of "
                f"{self.num_bytes}, or a new modification time; make the rows and the model again."
            )

    def _fill(self, handle: int, view: memoryview, offset: int) -> None:
        while view.nbytes:
            done = os.preadv(handle, [view], offset)
            if not done:
                raise ValueError(f"{self.path} is truncated: it ends before byte {offset}; write it again.")
            view, offset = view[done:], offset + done


def open_npy(given: Any) -> NpyFile:
    """Read the header of a .npy file; refuse what cannot be read row by row."""
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            f"`paths` must hold paths of .npy files, got {type(given).__name__}; try "
            "`quell.DiskRows({'features': 'x.npy', 'targets': 'y.npy'})`, or give the model arrays."
        )
    path = Path(given).absolute()
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; write it with `numpy.save`.") from None
    except Exception as error:  # a damaged header may raise anything
        raise ValueError(
            f"{path} must be a complete .npy file of numbers ({first_line(error)}); write it with `numpy.save(path, "
            "array)`."
        ) from error
    if not isinstance(array, np.memmap):  # an archive of several arrays
        array.close()
        raise ValueError(f"{path} must hold one array, got an archive; write each array with `numpy.save`.")
    check_entries(str(path), array.dtype, array.shape[1:])
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(f"{path} must have at least one row along its first axis, got shape {array.shape}.")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{path} must be in C order, got Fortran order; try `numpy.save(path, numpy.ascontiguousarray(array))`."
        )
    status = os.stat(path)
    return NpyFile(str(path), array.dtype.str, array.shape, array.offset, status.st_size, status.st_mtime_ns)


def check_entries(name: str, dtype: np.dtype, row_shape: tuple[int, ...]) -> None:
    """Refuse rows that JAX has no numbers for, and rows without any."""
    if dtype.kind not in KINDS or dtype.itemsize > 8:
        raise ValueError(
            f"{name} must hold numbers of at most 64 bits or booleans, got dtype {dtype}; try `x.astype('float32')`."
        )
    if 0 in row_shape:
        raise ValueError(f"{name} must have at least one number per row, got rows of shape {row_shape}.")
