# SPDX-License-Identifier: Apache-2.0
"""Rows written to .npy files as they come, in a folder that appears when all of them are on the disk."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from quell.core.numbers import unmasked
from quell.data.disk_rows import DiskRows
from quell.data.npy_file import check_entries

BUFFER = 2**20


class _Layout(NamedTuple):
    """What all batches share: the structure of their tree, and the dtype and shape of the rows of each leaf."""

    structure: Any
    dtypes: tuple[np.dtype, ...]
    row_shapes: tuple[tuple[int, ...], ...]

    def file_names(self) -> list[str]:
        """A file per leaf, named after its path in the tree."""
        leaves = jax.tree_util.tree_leaves_with_path(self.structure.unflatten(self.dtypes))
        names = [f"{jax.tree_util.keystr(path, simple=True, separator='.') or 'rows'}.npy" for path, _ in leaves]
        for name, dtype, row_shape in zip(names, self.dtypes, self.row_shapes, strict=True):
            check_entries(name, dtype, row_shape)
        if len(set(names)) != len(names) or any(os.sep in name or name.startswith(".") for name in names):
            raise ValueError(f"The names of `items` must be distinct and valid file names, got {names}.")
        return names

    def write_headers(self, files: list[BinaryIO], num_rows: int) -> None:
        """NumPy's header at the beginning of each file; it leaves room for the number of rows to grow."""
        for file, dtype, row_shape in zip(files, self.dtypes, self.row_shapes, strict=True):
            file.seek(0)
            content = {"descr": dtype.str, "fortran_order": False, "shape": (num_rows, *row_shape)}
            np.lib.format.write_array_header_1_0(file, content)

    def __str__(self) -> str:
        kinds = [f"{dtype}{list(shape)}" for dtype, shape in zip(self.dtypes, self.row_shapes, strict=True)]
        return str(self.structure.unflatten(kinds))


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
    try:
        names = _write_files(batches, hidden, max_bytes)
        os.chmod(hidden, 0o755)
        os.rename(hidden, folder)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    return DiskRows(jax.tree.map(lambda name: folder / name, names), max_bytes=max_bytes)


def _write_files(batches: Iterable[Any], folder: Path, max_bytes: int) -> Any:
    """Write all batches, and return the tree of the files' names when they are on the disk."""
    layout: _Layout | None = None
    names: list[str] = []
    files: list[BinaryIO] = []
    num_rows = num_batches = 0
    with contextlib.ExitStack() as stack:
        for batch in batches:
            arrays, own = _checked(f"Batch {num_batches}", batch, max_bytes)
            if layout is None:
                layout, names = own, own.file_names()
                files = [stack.enter_context((folder / name).open("wb", buffering=BUFFER)) for name in names]
                layout.write_headers(files, 0)
            if own != layout:
                raise ValueError(f"Batch {num_batches} must be like the first, {layout}, got {own}.")
            for file, array in zip(files, arrays, strict=True):
                file.write(np.ascontiguousarray(array).data)
            num_rows, num_batches = num_rows + arrays[0].shape[0], num_batches + 1
        if layout is None or not num_rows:
            raise ValueError(
                f"`items` must yield at least one row, got none in {num_batches} batches; is the iterator used up?"
            )
        layout.write_headers(files, num_rows)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    return layout.structure.unflatten(names)


def _checked(name: str, batch: Any, max_bytes: int) -> tuple[list[np.ndarray], _Layout]:
    """The arrays of a batch in the machine's byte order, and their layout."""
    leaves, structure = jax.tree.flatten(batch)
    arrays = [np.asarray(unmasked("items", leaf)) for leaf in leaves]
    shapes = [array.shape for array in arrays]
    if not arrays or () in shapes or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(
            f"{name} must be arrays that share their leading axis, got shapes {shapes}; try `batched=False` if each "
            "item is one row."
        )
    if (size := sum(array.nbytes for array in arrays)) > max_bytes:
        raise ValueError(
            f"{name} must have at most `max_bytes={max_bytes}`, got {size}; make smaller batches, or raise `max_bytes`."
        )
    arrays = [array.astype(array.dtype.newbyteorder("="), copy=False) for array in arrays]
    dtypes, row_shapes = tuple(array.dtype for array in arrays), tuple(shape[1:] for shape in shapes)
    return arrays, _Layout(structure, dtypes, row_shapes)
