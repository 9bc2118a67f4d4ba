# SPDX-License-Identifier: Apache-2.0
"""Rows written to .npy files as they come, in a folder that is there as a whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from quell.data.disk_rows import DiskRows
from quell.data.npy_file import KINDS

HEADER = 256
"""Bytes before the first row: room for any number of rows, which is known at the end only."""

BUFFER = 2**20


def write_rows(batches: Iterable[Any], folder: Path, *, max_bytes: int) -> DiskRows:
    """Write batches to a new folder, one file a leaf of their tree, and return the rows.

    Files grow in a hidden folder beside the new one, which gets its name when all is on the disk. What was begun is
    removed where something fails.

    Args:
        batches: trees of arrays that share their leading axis; all of the same structure.
        folder: that is not there yet, in one that is.
        max_bytes: that one batch may have, and that rows may take later on.
    """
    folder = folder.absolute()
    _check_folder(folder)
    hidden = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    files = _Files(hidden, max_bytes)
    try:
        for batch in batches:
            files.add(batch)
        names, structure = files.finish()
        os.chmod(hidden, 0o755)
        os.rename(hidden, folder)
    except BaseException:
        files.close()
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return DiskRows(structure.unflatten([folder / name for name in names]), max_bytes=max_bytes)


def _check_folder(folder: Path) -> None:
    if folder.exists():
        raise FileExistsError(
            f"`folder` was given as {folder}, which is there already. A new one was needed. Give another name, or read "
            "its files with `quell.DiskRows`."
        )
    if not folder.parent.is_dir():
        raise FileNotFoundError(
            f"`folder` was given as {folder}, and {folder.parent} is not there. A folder in one that is there was "
            "needed. Make it first, for example with `mkdir -p`."
        )


class _Files:
    """One open file for each leaf of the batches.

    Args:
        folder: to write in.
        max_bytes: that one batch may have.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        """The first batch tells the structure."""
        self.folder, self.max_bytes = folder, max_bytes
        self.structure: Any = None
        self.names: list[str] = []
        self.kinds: list[tuple[np.dtype, tuple[int, ...]]] = []
        self.handles: list[BinaryIO] = []
        self.num_rows = self.num_batches = 0

    def add(self, batch: Any) -> None:
        """Write one batch, if it is like the first."""
        arrays = self._checked(batch)
        for handle, array in zip(self.handles, arrays, strict=True):
            handle.write(np.ascontiguousarray(array).data)
        self.num_rows, self.num_batches = self.num_rows + arrays[0].shape[0], self.num_batches + 1

    def finish(self) -> tuple[list[str], Any]:
        """Write the headers, and wait until all is on the disk."""
        if not self.num_rows:
            raise ValueError(
                f"No rows were given, in {self.num_batches} batches. At least one was needed. "
                "Look whether the iterator was used up before."
            )
        for handle, (dtype, shape) in zip(self.handles, self.kinds, strict=True):
            handle.seek(0)
            handle.write(_header(dtype, (self.num_rows, *shape)))
            handle.flush()
            os.fsync(handle.fileno())
            handle.close()
        return self.names, self.structure

    def close(self) -> None:
        """Let go of what was begun."""
        for handle in self.handles:
            handle.close()

    def _checked(self, batch: Any) -> list[np.ndarray]:
        leaves, structure = jax.tree.flatten(batch)
        arrays = [np.asarray(leaf) for leaf in leaves]
        where = f"Batch {self.num_batches}"
        shapes = [array.shape for array in arrays]
        if not arrays or () in shapes or len({shape[0] for shape in shapes}) != 1:
            raise ValueError(
                f"{where} was given with shapes {shapes}. Arrays that share their leading axis, one entry a row, were "
                "needed. Write `batched=False` where each item is one row."
            )
        if (size := sum(array.nbytes for array in arrays)) > self.max_bytes:
            raise ValueError(
                f"{where} was given with {size} bytes, and `max_bytes` is {self.max_bytes}. A smaller one was needed. "
                "Make smaller batches, or write a larger `max_bytes`."
            )
        kinds = [(array.dtype.newbyteorder("="), array.shape[1:]) for array in arrays]
        if self.structure is None:
            self._open(structure, kinds)
        elif (structure, kinds) != (self.structure, self.kinds):
            there, here = (_words(*like) for like in ((self.structure, self.kinds), (structure, kinds)))
            raise ValueError(
                f"{where} was given as {here}, and the first as {there}. Batches of one structure were needed, with "
                "the same dtypes and the same shapes of a row. Convert them before they are written."
            )
        return [array.astype(kind[0], copy=False) for array, kind in zip(arrays, kinds, strict=True)]

    def _open(self, structure: Any, kinds: list[tuple[np.dtype, tuple[int, ...]]]) -> None:
        leaves = jax.tree_util.tree_leaves_with_path(structure.unflatten(range(len(kinds))))
        names = [_file_name(path) for path, _ in leaves]
        for name, (dtype, shape) in zip(names, kinds, strict=True):
            if dtype.kind not in KINDS or dtype.itemsize > 8 or 0 in shape:
                raise ValueError(
                    f"{name} was given with rows of dtype {dtype} and shape {shape}. Numbers of at most 64 bits, at "
                    "least one a row, were needed. Convert them first, for example with `array.astype('float32')`."
                )
        if len(set(names)) != len(names) or any(os.sep in name or name.startswith(".") for name in names):
            raise ValueError(
                f"Rows were given with the names {names}. Different names that can be files were needed. "
                "Rename the entries of the dict."
            )
        self.structure, self.kinds, self.names = structure, kinds, names
        for name in names:
            handle = (self.folder / name).open("wb", buffering=BUFFER)
            handle.write(b"\0" * HEADER)
            self.handles.append(handle)


def _file_name(path: tuple[Any, ...]) -> str:
    return f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'rows'}.npy"


def _header(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """The header of the format's first version, filled up with blanks."""
    text = repr({"descr": dtype.str, "fortran_order": False, "shape": shape}).encode("latin1")
    start = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    return start + text.ljust(HEADER - 11) + b"\n"


def _words(structure: Any, kinds: list[tuple[np.dtype, tuple[int, ...]]]) -> str:
    return str(structure.unflatten([f"{dtype}{list(shape)}" for dtype, shape in kinds]))
