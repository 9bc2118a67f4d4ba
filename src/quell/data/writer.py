# SPDX-License-Identifier: Apache-2.0
"""Rows written to .npy files as they come, in a folder that appears when all of them are on the disk."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np

from quell.data.disk_rows import DiskRows
from quell.data.npy_file import check_entries

BUFFER = 2**20


def write_rows(batches: Iterable[Any], folder: Path, *, max_bytes: int) -> DiskRows:
    """Write batches to a new folder, one file per leaf of their tree, and return the rows.

    Files grow in a hidden folder beside the new one, which is renamed when all is on the disk, and removed if
    something fails.

    Args:
        batches: trees of arrays that share their leading axis; all of the same structure.
        folder: a new folder in an existing one.
        max_bytes: limit per batch, and for the rows that are in memory later on.
    """
    folder = folder.absolute()
    if folder.exists():
        raise FileExistsError(f"`folder` {folder} already exists; pass another, or read it with `quell.DiskRows`.")
    if not folder.parent.is_dir():
        raise FileNotFoundError(
            f"`folder` must be in an existing folder, got {folder}; try `mkdir -p {folder.parent}`."
        )
    hidden = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    files = _GrowingFiles(hidden, max_bytes)
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


class _GrowingFiles:
    """One open file per leaf of the batches, whose structure the first batch sets.

    Args:
        folder: to write in.
        max_bytes: limit per batch.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
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
                f"`items` must yield at least one row, got none in {self.num_batches} batches; is the iterator used up?"
            )
        for handle, kind in zip(self.handles, self.kinds, strict=True):
            handle.seek(0)
            _write_header(handle, *kind, num_rows=self.num_rows)
            handle.flush()
            os.fsync(handle.fileno())
            handle.close()
        return self.names, self.structure

    def close(self) -> None:
        """Close the files as they are."""
        for handle in self.handles:
            handle.close()

    def _checked(self, batch: Any) -> list[np.ndarray]:
        leaves, structure = jax.tree.flatten(batch)
        arrays = [np.asarray(leaf) for leaf in leaves]
        shapes = [array.shape for array in arrays]
        if not arrays or () in shapes or len({shape[0] for shape in shapes}) != 1:
            raise ValueError(
                f"Batch {self.num_batches} must be arrays that share their leading axis, got shapes {shapes}; try "
                "`batched=False` if each item is one row."
            )
        if (size := sum(array.nbytes for array in arrays)) > self.max_bytes:
            raise ValueError(
                f"Batch {self.num_batches} must have at most `max_bytes={self.max_bytes}`, got {size}; make smaller "
                "batches, or raise `max_bytes`."
            )
        kinds = [(array.dtype.newbyteorder("="), array.shape[1:]) for array in arrays]
        if self.structure is None:
            self._open(structure, kinds)
        elif (structure, kinds) != (self.structure, self.kinds):
            raise ValueError(
                f"Batch {self.num_batches} must be like the first, {_described(self.structure, self.kinds)}, got "
                f"{_described(structure, kinds)}."
            )
        return [array.astype(kind[0], copy=False) for array, kind in zip(arrays, kinds, strict=True)]

    def _open(self, structure: Any, kinds: list[tuple[np.dtype, tuple[int, ...]]]) -> None:
        leaves = jax.tree_util.tree_leaves_with_path(structure.unflatten(range(len(kinds))))
        names = [f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'rows'}.npy" for path, _ in leaves]
        for name, kind in zip(names, kinds, strict=True):
            check_entries(name, *kind)
        if len(set(names)) != len(names) or any(os.sep in name or name.startswith(".") for name in names):
            raise ValueError(f"The names of `items` must be distinct and valid file names, got {names}.")
        self.structure, self.kinds, self.names = structure, kinds, names
        for name, kind in zip(names, kinds, strict=True):
            self.handles.append((self.folder / name).open("wb", buffering=BUFFER))
            _write_header(self.handles[-1], *kind, num_rows=0)


def _write_header(file: BinaryIO, dtype: np.dtype, row_shape: tuple[int, ...], *, num_rows: int) -> None:
    """A header of NumPy's, which leaves room for the number of rows to grow."""
    content = {"descr": dtype.str, "fortran_order": False, "shape": (num_rows, *row_shape)}
    np.lib.format.write_array_header_1_0(file, content)


def _described(structure: Any, kinds: list[tuple[np.dtype, tuple[int, ...]]]) -> str:
    return str(structure.unflatten([f"{dtype}{list(shape)}" for dtype, shape in kinds]))
