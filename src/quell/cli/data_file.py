# SPDX-License-Identifier: Apache-2.0
"""Arrays by name from a file of the user's: `.npz`, or `.csv` with a header."""

import csv
import glob
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def read_data(path: Path) -> dict[str, np.ndarray]:
    """Read a data file; whatever is missing or not a number is an error that names its place.

    Args:
        path: an `.npz` archive of arrays, or a `.csv` whose first line names its columns.
    """
    readers = {".npz": _read_npz, ".csv": _read_csv}
    if path.suffix not in readers or not path.is_file():
        problem = "was not found" if path.suffix in readers else "is of a kind that is not known"
        raise ValueError(
            f"The data file {str(path)!r} {problem}. An `.npz` of arrays, or a `.csv` with a header, was needed. "
            "Write one with `numpy.savez('data.npz', x=x, y=y)`."
        )
    return readers[path.suffix](path)


def read_parts(pattern: Path, *, part: int, num_parts: int) -> dict[str, np.ndarray]:
    """Read one of several equal shares of the files that a pattern finds, joined in the order of their names.

    Args:
        pattern: of a path, such as `rows-*.npz`; the path of one file where there is one share.
        part: which share.
        num_parts: how many there are.
    """
    if not glob.has_magic(str(pattern)):
        if num_parts > 1:
            raise ValueError(
                f"`--data` was given as {str(pattern)!r} for {num_parts} processes. A pattern of files was needed, of "
                "which each process reads its own. Type for example `--data 'rows-*.npz'`."
            )
        return read_data(pattern)
    files = sorted(map(Path, glob.glob(str(pattern))))
    if not files or len(files) % num_parts:
        raise ValueError(
            f"`--data` was given as {str(pattern)!r}, which finds {len(files)} files for {num_parts} processes. As "
            "many for each were needed. Write the rows to a multiple of that many files, all of one length."
        )
    share = len(files) // num_parts
    own = files[part * share : (part + 1) * share]
    parts = [read_data(file) for file in own]
    names = {tuple(sorted(found)) for found in parts}
    if len(names) > 1:
        raise ValueError(
            f"The files of {str(pattern)!r} hold arrays of different names: {' and '.join(map(str, sorted(names)))}. "
            "The same in all of them were needed."
        )
    return {
        name: _joined(name, {file: found[name] for file, found in zip(own, parts, strict=True)}) for name in parts[0]
    }


def _joined(name: str, by_file: dict[Path, np.ndarray]) -> np.ndarray:
    """The rows of one array in the order of the files."""
    arrays = {file: np.atleast_1d(array) for file, array in by_file.items()}
    first = next(iter(arrays))
    for file, array in arrays.items():
        if array.shape[1:] != arrays[first].shape[1:]:
            raise ValueError(
                f"The array {name!r} has rows of shape {array.shape[1:]} in {file} and of {arrays[first].shape[1:]} in "
                f"{first}. The same in all files were needed. Write those files again."
            )
    return np.concatenate(list(arrays.values()))


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except Exception as error:  # a damaged archive raises anything
        raise ValueError(
            f"{path} could not be read ({error}). An archive of plain arrays was needed. "
            "Write it with `numpy.savez('data.npz', x=x, y=y)`."
        ) from error
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"The array {name!r} of {path} has dtype {array.dtype}. Numbers were needed. "
                "Turn categories into numbers first, for example with `numpy.unique(values, return_inverse=True)`."
            )
        bad = ~np.isfinite(array)
        if bad.any():
            place = np.argwhere(np.atleast_1d(bad))[0].tolist()
            raise _missing(path, f"array {name!r}", f"at {place}", str(np.atleast_1d(array)[tuple(place)]))
    return arrays


def _read_csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    header = [name.strip() for name in header]
    rows = [row for row in rows if row]
    if not rows or not all(header) or len(set(header)) < len(header):
        raise ValueError(
            f"{path} has the header {header} and {len(rows)} rows. A first line with a different name for each column, "
            "and rows below it, were needed. Write for example `x,y` as its first line."
        )
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise ValueError(
                f"Row {number} of {path} has {len(row)} cells for {len(header)} columns. As many were needed. "
                "Put quotes around cells that hold a comma."
            )
    columns = zip(*rows, strict=True)
    return {name: _numbers(path, name, column) for name, column in zip(header, columns, strict=True)}


def _numbers(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    """A column as whole numbers where all cells are, else as floating point."""
    for kind in (np.int64, np.float64):
        try:
            values = np.array(cells, dtype=kind)
        except (ValueError, OverflowError):
            continue
        if np.isfinite(values).all():
            return values
        row = int(np.argmin(np.isfinite(values)))
        raise _missing(path, f"column {name!r}", f"in row {row + 1}", cells[row])
    row, cell = next((row, cell) for row, cell in enumerate(cells, 1) if not _is_number(cell))
    if not cell.strip():
        raise _missing(path, f"column {name!r}", f"in row {row}", "an empty cell")
    raise ValueError(
        f"The column {name!r} of {path} has {cell!r} in row {row}. Numbers were needed. "
        "Turn categories into numbers first, one number for each."
    )


def _missing(path: Path, what: str, where: str, value: str) -> ValueError:
    return ValueError(
        f"The {what} of {path} has {value} {where}. Finite numbers were needed. "
        "Drop or fill in the rows with missing values first."
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
