# SPDX-License-Identifier: Apache-2.0
"""Data that stay on the disk: rows are read when a step or a pass over the data needs them."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from quell.core.checks import check_count
from quell.data.npy_file import NpyFile, open_npy
from quell.data.reader import RowReader, reader_of

MAX_BYTES = 2**28
"""Bytes of rows that may be in memory at a time."""

MOST_ROWS = 2**31 - 1
"""Row numbers are 32-bit integers."""

COPIES = 4
"""Copies of rows in memory at once: in use, handed over, in another dtype, and read ahead."""

Prepare = Callable[[Any], Any]


class DiskRows(eqx.Module):
    """Data larger than memory, in .npy files with one row per datum.

    Pass it to a model instead of arrays. Minibatches are read while the previous step runs, and passes over all data go
    in blocks; the fit is the same as with the data in memory. It holds no arrays, so that programs are compiled for its
    files, and a file that changes during a fit is an error.

    Args:
        paths: a tree, such as a dict, of paths of .npy files that share their number of rows.
        prepare: a function of rows, in JAX operations, whose result the model sees instead. Define it once, because
            programs are compiled for it.
        max_bytes: memory for rows at any time, copies and rows that are read ahead included.

    Cost: for a minibatch one read per row and file, for a block one per file; no file is mapped into memory.

    Example:
        >>> import numpy as np, pathlib, quell, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> np.save(folder / "x.npy", np.ones((1000, 3), "float32"))
        >>> np.save(folder / "y.npy", np.arange(1000, dtype="int32") % 2)
        >>> rows = quell.DiskRows({"features": folder / "x.npy", "labels": folder / "y.npy"})
        >>> rows
        DiskRows(num_rows=1000, features=float32[3], labels=int32[])
        >>> quell.logistic_regression(rows["features"], rows["labels"])
        LinearPredictor(log_sigmoid, num_data=1000, dim=3)
    """

    files: tuple[NpyFile, ...] = eqx.field(static=True)
    structure: Any = eqx.field(static=True)
    prepare: Prepare | None = eqx.field(static=True)
    max_bytes: int = eqx.field(static=True)

    def __init__(self, paths: PyTree, *, prepare: Prepare | None = None, max_bytes: int = MAX_BYTES) -> None:
        """Read the headers, and check that the files belong together."""
        check_count("max_bytes", max_bytes)
        leaves, self.structure = jax.tree.flatten(paths)
        self.files = tuple(leaf if isinstance(leaf, NpyFile) else open_npy(leaf) for leaf in leaves)
        self.prepare, self.max_bytes = prepare, max_bytes
        lengths = [file.shape[0] for file in self.files]
        if len(set(lengths)) != 1:
            named = ", ".join(f"{file.path} with {file.shape[0]} rows" for file in self.files) or "no files"
            raise ValueError(
                f"`paths` must be files with the same number of rows, got {named}; try "
                "`quell.DiskRows({'features': 'x.npy', 'targets': 'y.npy'})`."
            )
        if lengths[0] > MOST_ROWS:
            raise ValueError(
                f"`paths` must have at most {MOST_ROWS} rows, got {lengths[0]}; put several data in each row."
            )
        if self.row_bytes * COPIES > max_bytes:
            raise ValueError(
                f"`max_bytes` must be at least {self.row_bytes * COPIES} for rows of {self.row_bytes} bytes, got "
                f"{max_bytes}."
            )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.files[0].shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes per row, as in the files or as prepared, whichever is more."""
        prepared = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(self.like(1)))
        return max(prepared, sum(file.row_bytes for file in self.files))

    @property
    def most_rows(self) -> int:
        """Rows that may be read at once."""
        return max(1, self.max_bytes // (COPIES * self.row_bytes))

    @property
    def digest(self) -> dict[str, str]:
        """What a checkpoint compares, by name: header, size and modification time of each file."""
        named = jax.tree_util.tree_leaves_with_path(self.structure.unflatten(self.files))
        return {jax.tree_util.keystr(path): file.digest for path, file in named}

    def like(self, num: int) -> PyTree:
        """Shapes and dtypes of `num` rows, as a model sees them."""
        rows = self.like_raw(num)
        return rows if self.prepare is None else jax.eval_shape(self.prepare, rows)

    def like_raw(self, num: int) -> PyTree:
        """Shapes and dtypes of `num` rows, before `prepare`."""
        return self.structure.unflatten(self._shapes((num,)))

    def take(self, index: Int[Array, "..."], upcoming: Int[Array, "..."] | None = None) -> PyTree:
        """Rows of an index, read when the program runs.

        Args:
            index: row numbers, of any shape.
            upcoming: row numbers of the next call, to be read ahead.
        """
        self._check_size(index.size)
        more = () if upcoming is None else (upcoming,)
        shapes = self._shapes(index.shape)
        # Under `jax.vmap` the index gets one more axis, and so do the rows.
        return self._tree(jax.pure_callback(self._reader.take, shapes, index, *more, vmap_method="broadcast_all"))

    def slice(self, start: Int[Array, ""], size: int) -> PyTree:
        """Rows `start` to `start + size`, read when the program runs."""
        self._check_size(size)
        read = functools.partial(self._reader.slice, size=size)
        return self._tree(jax.pure_callback(read, self._shapes((size,)), start, vmap_method="sequential"))

    def read(self, start: int, num: int) -> PyTree:
        """Rows `start` to `start + num`, read now; those that follow are read ahead."""
        self._check_size(num)
        return self._tree(tuple(map(jnp.asarray, self._reader.slice(np.asarray(start), size=num))))

    def prepared(self, arrays: Sequence[np.ndarray]) -> PyTree:
        """Rows as a model sees them, from those of each file."""
        kept = zip(arrays, self.dtypes, strict=True)
        return self._tree(tuple(jnp.asarray(array.astype(dtype, copy=False)) for array, dtype in kept))

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """JAX's dtype of each file, which depends on its precision at the time of the call."""
        return tuple(file.read_dtype for file in self.files)

    @property
    def names(self) -> list[str]:
        """Of the files: their paths in the tree, or `rows`."""
        named = jax.tree_util.tree_leaves_with_path(self.structure.unflatten(self.files))
        return [jax.tree_util.keystr(path, simple=True, separator=".") or "rows" for path, _ in named]

    def __getitem__(self, name: Any) -> "DiskRows":
        """A part of the tree, such as `rows["features"]`."""
        if self.prepare is not None:
            raise TypeError(
                f"Rows with `prepare` have no part {name!r}; make one `quell.DiskRows(path, prepare=...)` per part."
            )
        tree = self.structure.unflatten(self.files)
        try:
            part = tree[name]
        except (KeyError, IndexError, TypeError):
            has = ", ".join(map(repr, tree)) if isinstance(tree, dict) else f"{len(self.files)} files"
            raise KeyError(f"The part must be one of {has}, got {name!r}.") from None
        return DiskRows(part, max_bytes=self.max_bytes)

    @property
    def _reader(self) -> RowReader:
        return reader_of(self.files, self.dtypes)

    def _shapes(self, leading: tuple[int, ...]) -> tuple[jax.ShapeDtypeStruct, ...]:
        return tuple(jax.ShapeDtypeStruct((*leading, *file.row_shape), file.read_dtype) for file in self.files)

    def _tree(self, leaves: tuple[Array, ...]) -> PyTree:
        tree = jax.lax.stop_gradient(self.structure.unflatten(leaves))
        return tree if self.prepare is None else self.prepare(tree)

    def _check_size(self, num: int) -> None:
        if num > self.most_rows:
            needed = num * COPIES * self.row_bytes
            raise ValueError(
                f"At most {self.most_rows} rows of {self.row_bytes} bytes may be read at once with "
                f"`max_bytes={self.max_bytes}`, got {num}; try a smaller minibatch such as "
                f"`sampler=quell.Sampler(1, {min(self.most_rows, 100)})`, or `max_bytes={needed}`."
            )

    def __repr__(self) -> str:
        """Number of rows, and dtype and shape of their parts."""
        kinds = [f"{file.read_dtype}{list(file.row_shape)}" for file in self.files]
        parts = [f"{name}={kind}" for name, kind in zip(self.names, kinds, strict=True)]
        return f"DiskRows({', '.join([f'num_rows={self.num_rows}', *parts])})"


@dataclasses.dataclass(frozen=True)
class _Joined:
    """Two sources, each with its own `prepare`, put together."""

    first: Prepare | None
    second: Prepare | None
    finish: Callable[[Any, Any], Any]

    def __call__(self, rows: tuple[Any, Any]) -> Any:
        """The rows that a model sees."""
        ways = zip(rows, (self.first, self.second), strict=True)
        return self.finish(*(part if way is None else way(part) for part, way in ways))


def join_rows(first: DiskRows, second: DiskRows, finish: Callable[[Any, Any], Any]) -> DiskRows:
    """Rows of two sources put together by a function; the smaller `max_bytes` applies."""
    tree = tuple(part.structure.unflatten(part.files) for part in (first, second))
    joined = _Joined(first.prepare, second.prepare, finish)
    return DiskRows(tree, prepare=joined, max_bytes=min(first.max_bytes, second.max_bytes))
