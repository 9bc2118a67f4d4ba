# SPDX-License-Identifier: Apache-2.0
"""From anything that yields rows to rows on disk that can be read in any order."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from quell.core.checks import check_count
from quell.data.disk_rows import MAX_BYTES, DiskRows
from quell.data.writer import write_rows


def rows_from_iterator(
    items: Iterable[Any], folder: str | Path, *, batched: bool = True, max_bytes: int = MAX_BYTES
) -> DiskRows:
    """Write what an iterator yields to .npy files, once, and return the rows.

    A fit shuffles, passes over all rows and resumes, which no iterator can; so what it yields is kept. The folder gets
    its name when everything is on the disk: one that is there is whole. A loader of Grain or of PyTorch is such an
    iterator.

    Args:
        items: trees of arrays, such as dicts or tuples, that share their leading axis; all of one structure.
        folder: to be made; the files are named after the entries, for example `features.npy`.
        batched: whether items are batches; with `False` each of them is one row, without the leading axis.
        max_bytes: that rows may take in memory at a time, here and in a fit.

    Cost: one write of all rows; memory for one item.

    Example:
        >>> import numpy as np, pathlib, quell, tempfile
        >>> batches = ({"x": np.full((10, 2), k, "float32"), "y": np.arange(10)} for k in range(3))
        >>> quell.rows_from_iterator(batches, pathlib.Path(tempfile.mkdtemp()) / "rows")
        DiskRows(num_rows=30, x=float32[2], y=int64[])
    """
    check_count("max_bytes", max_bytes)
    if isinstance(items, str | bytes | dict) or not isinstance(items, Iterable):
        raise TypeError(
            f"`items` was given as {type(items).__name__}. Something that yields batches was needed. "
            "Write for example `quell.rows_from_iterator(iter(loader), 'rows')`."
        )
    batches = items if batched else (jax.tree.map(lambda leaf: np.asarray(leaf)[None], item) for item in items)
    return write_rows(batches, Path(folder), max_bytes=max_bytes)


def rows_from_parquet(
    path: str | Path, columns: dict[str, str | list[str]], folder: str | Path, *, max_bytes: int = MAX_BYTES
) -> DiskRows:
    """Write columns of Parquet to .npy files, once, and return the rows.

    Args:
        path: of a file, or of a folder of `.parquet` files, which are taken in the order of their names.
        columns: what each entry of the rows is made of: a column by its name, or several side by side as a list.
        folder: to be made; see `rows_from_iterator`.
        max_bytes: that rows may take in memory at a time, here and in a fit.

    Cost: one pass over the columns named; the extra `parquet`.

    Example:
        >>> columns = {"features": ["age", "height"], "labels": "smokes"}
        >>> rows = quell.rows_from_parquet("people.parquet", columns, "people")  # doctest: +SKIP
    """
    check_count("max_bytes", max_bytes)
    return write_rows(_batches(_files(Path(path)), columns, max_bytes), Path(folder), max_bytes=max_bytes)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} was given as a source of rows. A Parquet file, or a folder of them, that is there was needed. "
            "Look whether the path is right."
        )
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(
            f"The folder {path} was given as a source of rows, and no file in it ends in .parquet. At least one was "
            "needed. Give the folder of the files themselves."
        )
    return found


def _batches(paths: list[Path], columns: dict[str, str | list[str]], max_bytes: int) -> Iterator[dict[str, np.ndarray]]:
    arrow, parquet = _pyarrow()
    names = [name for given in columns.values() for name in ([given] if isinstance(given, str) else given)]
    for path in paths:
        try:
            # Pages are read as they are needed; row groups may be larger than memory.
            with parquet.ParquetFile(
                path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
            ) as file:
                _check_columns(path, file.schema_arrow, columns, names)
                for batch in file.iter_batches(_batch_size(file, names, max_bytes), columns=list(dict.fromkeys(names))):
                    yield {name: _array(path, batch, given) for name, given in columns.items()}
        except (arrow.ArrowException, OSError) as error:
            raise ValueError(
                f"{path} cannot be read as Parquet ({str(error).strip()}). A whole file was needed. Nothing was kept "
                "of what was written; copy the file again, and look at it with `pyarrow.parquet.read_metadata`."
            ) from error


def _batch_size(file: Any, names: list[str], max_bytes: int) -> int:
    """Rows of a batch: by what a row takes in memory, and no less than in the file, four times, since it is copied."""
    groups = (file.metadata.row_group(k) for k in range(file.metadata.num_row_groups))
    columns = (group.column(k) for group in groups for k in range(group.num_columns))
    wanted = sum(c.total_uncompressed_size for c in columns if c.path_in_schema.split(".")[0] in names)
    in_memory = sum(max(8, _bytes_of(file.schema_arrow.field(name).type)) for name in names)  # side by side as doubles
    a_row = max(in_memory, wanted // max(file.metadata.num_rows, 1))
    return int(np.clip(max_bytes // (4 * a_row), 1, 2**16))


def _bytes_of(kind: Any) -> int:
    """Bytes of one value of a column; of what is refused later, any number."""
    size = getattr(kind, "list_size", 1)
    try:
        return size * max(1, getattr(kind, "value_type", kind).bit_width // 8)
    except ValueError:
        return size * 8


def _check_columns(path: Path, schema: Any, columns: dict[str, str | list[str]], names: list[str]) -> None:
    if not names or not all(columns.values()):
        raise ValueError(
            f"`columns` was given as {columns}. At least one column for each entry was needed. "
            "Write for example `columns={'features': ['age', 'height'], 'labels': 'smokes'}`."
        )
    missing = [name for name in names if name not in schema.names]
    if missing:
        has = ", ".join(schema.names[:20]) + (", ..." if len(schema.names) > 20 else "")
        raise ValueError(
            f"The columns {', '.join(missing)} were asked for, and {path} has {has}. Names of columns that are there "
            "were needed. Look at `pyarrow.parquet.read_schema(path)`."
        )


def _array(path: Path, batch: Any, given: str | list[str]) -> np.ndarray:
    if isinstance(given, str):
        return _column(path, given, batch.column(given))
    return np.stack([_column(path, name, batch.column(name)) for name in given], axis=-1)


def _column(path: Path, name: str, column: Any) -> np.ndarray:
    """A column of numbers, or of lists of one length, without gaps."""
    import pyarrow.types as types

    kind = column.type
    is_list = types.is_fixed_size_list(kind)
    inner = kind.value_type if is_list else kind
    if not (types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)):
        raise ValueError(
            f"The column {name} of {path} has the type {kind}. Numbers, truth values or lists of one fixed length of "
            "them were needed. Convert it before, or leave it out."
        )
    values = column.flatten() if is_list else column
    if gaps := column.null_count + (values.null_count if is_list else 0):
        raise ValueError(
            f"The column {name} of {path} has {gaps} nulls in a batch of {len(column)} rows. Numbers were needed. "
            "Drop or fill those rows first."
        )
    found = values.to_numpy(zero_copy_only=False)
    return found.reshape(len(column), kind.list_size) if is_list else found


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "`rows_from_parquet` was called, and pyarrow is not installed. The extra `parquet` was needed. "
            "Type `pip install 'quell[parquet]'`."
        ) from error
    return pyarrow, pyarrow.parquet
