# SPDX-License-Identifier: Apache-2.0
"""From iterators and Parquet to rows on disk that can be read in any order."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from quell.core.checks import check_count
from quell.core.numbers import unmasked
from quell.data.disk_rows import MAX_BYTES, DiskRows
from quell.data.writer import write_rows

MOST_ROWS = 2**16
"""Rows per batch that is read from Parquet, at most."""


def rows_from_iterator(
    items: Iterable[Any], folder: str | Path, *, batched: bool = True, max_bytes: int = MAX_BYTES
) -> DiskRows:
    """Write what an iterator yields to .npy files, once, and return the rows.

    A fit shuffles rows, passes over all of them and resumes, which no iterator can; so they are written to disk. The
    folder appears when everything is written: one that exists is complete. A data loader of Grain or PyTorch is such
    an iterator.

    Args:
        items: trees of arrays, such as dicts or tuples, that share their leading axis; all of one structure.
        folder: a new folder; the files are named after the entries, for example `features.npy`.
        batched: whether items are batches; with `False` each of them is one row, without the leading axis.
        max_bytes: memory for rows at any time, here and in a fit.

    Cost: one write of all rows; memory for one item.

    Example:
        >>> import numpy as np, pathlib, quell, tempfile
        >>> batches = ({"x": np.full((10, 2), k, "float32"), "y": np.arange(10, dtype="int32")} for k in range(3))
        >>> quell.rows_from_iterator(batches, pathlib.Path(tempfile.mkdtemp()) / "rows")
        DiskRows(num_rows=30, x=float32[2], y=int32[])
    """
    check_count("max_bytes", max_bytes)
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        raise TypeError(
            f"`items` must be an iterable of batches, got {type(items).__name__}; try "
            "`quell.rows_from_iterator(iter(loader), 'rows')`."
        )
    batches = items if batched else (jax.tree.map(_as_row, item) for item in items)
    return write_rows(batches, Path(folder), max_bytes=max_bytes)


def _as_row(leaf: Any) -> np.ndarray:
    return np.asarray(unmasked("items", leaf))[None]


def rows_from_parquet(
    path: str | Path, columns: dict[str, str | list[str]], folder: str | Path, *, max_bytes: int = MAX_BYTES
) -> DiskRows:
    """Write columns of Parquet to .npy files, once, and return the rows.

    Args:
        path: of a file, or of a folder of `.parquet` files, which are read in the order of their names.
        columns: for each entry of the rows the name of a column, or a list of names to put side by side.
        folder: a new folder; see `rows_from_iterator`.
        max_bytes: memory for rows at any time, here and in a fit.

    Cost: one pass over the named columns; needs the extra `parquet`.

    Example:
        >>> columns = {"features": ["age", "height"], "labels": "smokes"}
        >>> rows = quell.rows_from_parquet("people.parquet", columns, "people")  # doctest: +SKIP
    """
    check_count("max_bytes", max_bytes)
    if not columns or not all(columns.values()):
        raise ValueError(
            f"`columns` must name at least one column per entry, got {columns}; try "
            "`columns={'features': ['age', 'height'], 'labels': 'smokes'}`."
        )
    return write_rows(_parquet_batches(Path(path), columns, max_bytes), Path(folder), max_bytes=max_bytes)


def _parquet_batches(
    path: Path, columns: dict[str, str | list[str]], max_bytes: int
) -> Iterator[dict[str, np.ndarray]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("`rows_from_parquet` needs pyarrow; try `pip install 'quell[parquet]'`.") from error
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files or not path.exists():
        raise FileNotFoundError(f"`path` must be a Parquet file or a folder of .parquet files, got {path}.")
    # Pages are read as they are needed, because row groups may be larger than memory.
    options: dict[str, Any] = {"buffer_size": 2**20, "pre_buffer": False, "page_checksum_verification": True}
    for one in files:
        try:
            with ParquetFile(one, **options) as file:
                yield from _file_batches(one, file, columns, max_bytes)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{one} must be a complete Parquet file ({str(error).strip()}); copy it again. Nothing was written."
            ) from error


def _file_batches(
    path: Path, file: Any, columns: dict[str, str | list[str]], max_bytes: int
) -> Iterator[dict[str, np.ndarray]]:
    listed = [name for given in columns.values() for name in ([given] if isinstance(given, str) else given)]
    names, has = list(dict.fromkeys(listed)), file.schema_arrow.names
    if missing := [name for name in names if name not in has]:
        shown = ", ".join(has[:20]) + (", ..." if len(has) > 20 else "")
        raise ValueError(f"`columns` must be among those of {path} ({shown}), got {', '.join(missing)}.")
    for batch in file.iter_batches(_batch_size(file, names, max_bytes), columns=names):
        found = {name: _numbers(path, name, batch.column(name)) for name in names}
        yield {
            entry: found[given] if isinstance(given, str) else np.stack([found[name] for name in given], axis=-1)
            for entry, given in columns.items()
        }


def _batch_size(file: Any, names: list[str], max_bytes: int) -> int:
    """Rows per batch that fit in memory four times, since they are copied.

    A row counts with its size in memory, as doubles if it is smaller, or with its size in the file if that is larger.
    """
    groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
    columns = (group.column(k) for group in groups for k in range(group.num_columns))
    stored = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in names)
    in_memory = sum(8 * getattr(file.schema_arrow.field(name).type, "list_size", 1) for name in names)
    row_bytes = max(in_memory, stored // max(file.metadata.num_rows, 1))
    return int(np.clip(max_bytes // (4 * row_bytes), 1, MOST_ROWS))


def _numbers(path: Path, name: str, column: Any) -> np.ndarray:
    """A column of numbers, or of fixed-size lists of them, without nulls."""
    import pyarrow.types as types

    kind = column.type
    is_list = types.is_fixed_size_list(kind)
    inner = kind.value_type if is_list else kind
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        raise ValueError(
            f"The column {name} of {path} must hold numbers, booleans or fixed-size lists of them, got {kind}."
        )
    values = column.flatten() if is_list else column
    if nulls := column.null_count + (values.null_count if is_list else 0):
        raise ValueError(
            f"The column {name} of {path} must have no nulls, got {nulls} in a batch of {len(column)} rows; drop or "
            "impute those rows."
        )
    return values.to_numpy(zero_copy_only=False).reshape(len(column), *([kind.list_size] if is_list else []))
