# SPDX-License-Identifier: Apache-2.0
"""Named arrays from a data file: `.npz`, or `.csv` with a header."""

import contextlib
import csv
import glob
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quell.core.checks import first_line


def read_data(path: Path) -> dict[str, np.ndarray]:
    """Read a data file; an entry that is missing or not a number is an error with its position.

    Args:
        path: an `.npz` archive of arrays, or a `.csv` whose first line names its columns.
    """
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers or not path.is_file():
        problem = "which does not exist" if path.suffix in readers else f"a {path.suffix or 'nameless'} file"
        raise ValueError(
            f"`--data` must be an `.npz` of arrays or a `.csv` with a header, got {str(path)!r}, {problem}; try "
            "`numpy.savez('data.npz', x=x, y=y)`."
        )
    return readers[path.suffix](path)


def read_parts(pattern: Path, *, part: int, num_parts: int) -> dict[str, np.ndarray]:
    """Read one of several equal shares of the files that match a pattern, concatenated in the order of their names.

    Args:
        pattern: such as `rows-*.npz`; may be the path of one file if there is one share.
        part: index of the share.
        num_parts: number of shares.
    """
    if not glob.has_magic(str(pattern)):
        if num_parts > 1:
            raise ValueError(
                f"`--data` must be a pattern of files for {num_parts} processes, got {str(pattern)!r}; try "
                "`--data 'rows-*.npz'`."
            )
        return read_data(pattern)
    files = sorted(map(Path, glob.glob(str(pattern))))
    if not files or len(files) % num_parts:
        raise ValueError(
            f"The number of files that `--data` matches must be a multiple of the {num_parts} processes, got "
            f"{len(files)} for {str(pattern)!r}."
        )
    share = len(files) // num_parts
    parts = {file: read_data(file) for file in files[part * share : (part + 1) * share]}
    names = {tuple(sorted(found)) for found in parts.values()}
    if len(names) > 1:
        raise ValueError(
            f"All files of `--data` must hold arrays of the same names, got {' and '.join(map(str, sorted(names)))} in "
            f"{str(pattern)!r}."
        )
    by_name = {name: {file: np.atleast_1d(found[name]) for file, found in parts.items()} for name in names.pop()}
    return {name: _joined(name, by_file) for name, by_file in by_name.items()}


def _joined(name: str, by_file: dict[Path, np.ndarray]) -> np.ndarray:
    """The rows of one array, in the order of the files."""
    (first, head), *_ = by_file.items()
    for file, array in by_file.items():
        if array.shape[1:] != head.shape[1:]:
            raise ValueError(
                f"The array {name!r} must have rows of one shape in all files, got {array.shape[1:]} in {file} and "
                f"{head.shape[1:]} in {first}."
            )
    return np.concatenate(list(by_file.values()))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged archive may raise anything
        raise ValueError(
            f"{path} must be an archive of plain arrays ({first_line(error)}); try `numpy.savez('data.npz', x=x, y=y)`."
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"The array {name!r} of {path} must hold numbers, got dtype {array.dtype}; encode categories first, "
                "for example with `numpy.unique(values, return_inverse=True)`."
            )
        for place in np.argwhere(~np.isfinite(np.atleast_1d(array)))[:1].tolist():
            raise _not_finite(path, f"array {name!r}", f"{np.atleast_1d(array)[tuple(place)]} at {place}")
    return arrays


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    header, *rows = _cells(path) or [[]]
    header = [name.strip() for name in header]
    if not rows or not all(header) or len(set(header)) < len(header):
        raise ValueError(
            f"{path} must begin with a line of distinct column names, followed by rows, got the header {header} and "
            f"{len(rows)} rows."
        )
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"Row {number} of {path} must have {len(header)} cells, got {len(row)}; put quotes around cells with a "
                "comma."
            )
    columns = zip(*rows, strict=True)
    return {name: _numbers(path, name, column) for name, column in zip(header, columns, strict=True)}


def _cells(path: Path) -> list[list[str]]:
    """The lines that are not empty."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return [row for row in csv.reader(file) if row]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text, got byte {error.object[error.start]:#04x} ({error.reason}); try "
            f"`iconv -f latin1 -t utf-8 {path} > new.csv`."
        ) from None
    except (OSError, csv.Error) as error:
        raise ValueError(f"{path} must be a readable `.csv` file, got {error}.") from None


def _numbers(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    """A column of integers if all cells are, else of floating point."""
    values = []
    for row, cell in enumerate(cells, 1):
        try:
            values.append(float(cell) if cell.strip() else math.nan)
        except ValueError:
            raise ValueError(
                f"The column {name!r} of {path} must hold numbers, got {cell!r} in row {row}; encode categories first."
            ) from None
        if not math.isfinite(values[-1]):
            raise _not_finite(path, f"column {name!r}", f"{cell.strip() or 'an empty cell'} in row {row}")
    with contextlib.suppress(ValueError, OverflowError):
        return np.array(cells, np.int64)
    return np.array(values)


def _not_finite(path: Path, what: str, found: str) -> ValueError:
    return ValueError(
        f"The {what} of {path} must be finite, got {found}; drop or impute rows with missing values first."
    )
