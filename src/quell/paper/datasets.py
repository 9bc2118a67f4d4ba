# SPDX-License-Identifier: Apache-2.0
"""The paper's three data sets, scaled as its experiments need them.

`ionosphere` and `sonar` come with the package; `australian` is found in a folder or downloaded. All values
are checked, and rows come back sorted, so that the arrays do not depend on the copy they came from.
"""

import contextlib
import hashlib
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from quell.core.atomic import write_atomically
from quell.core.checks import check_name
from quell.core.compiled_folder import cache_folder

HALF_SEED = 0
"""Seed of the rows in the `ionosphere` half: the first 176 of `default_rng(0).permutation(351)`."""

_OPENML_ID = 40981  # Statlog "Australian", version 4
_DOWNLOAD_SECONDS = 30.0


class DatasetUnavailable(RuntimeError):
    """A data set that is not shipped was neither found nor downloaded; the message says how to get it."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """One binary classification problem, ready for logistic regression.

    Attributes:
        name: the name it was loaded by.
        features: each column scaled to [-1, 1] over these rows, a column of ones last for the intercept.
        labels: -1 or +1 for each row.
    """

    name: str
    features: Float[np.ndarray, "datum feature"]
    labels: Float[np.ndarray, "datum"]

    @property
    def num_data(self) -> int:
        """Number of rows."""
        return self.features.shape[0]

    def __repr__(self) -> str:
        num_features = self.features.shape[1] - 1
        return f"Dataset({self.name!r}: {self.num_data} rows, {num_features} features and an intercept)"


class _Table(NamedTuple):
    """The expected contents of a file: its size, and a digest of its values."""

    file: str
    num_data: int
    num_features: int
    digest: str


_IONOSPHERE = _Table("ionosphere.csv", 351, 34, "9b4a10ba3a90af0fa63679d1d8fa7910f14686f7e36176c6f7359535e0d4dbf9")
_SONAR = _Table("sonar.csv", 208, 60, "e36b77ab10456f2650575dd4390945d3859edd4273f3533649f074eb7a72196c")
_AUSTRALIAN = _Table("australian.csv", 690, 14, "55bdaa62fbb5da9c9b8807f3a6bb15ac07e11a1f36f5fe2144f24cba68ac6cb4")


def load(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Load one of the paper's data sets by name.

    `ionosphere` is a random half (176 of 351 rows), as in the paper's figures; `ionosphere-full` has all
    rows; `sonar` and `australian` are whole. Rows are chosen first and scaled afterwards, so every column
    spans [-1, 1] over the rows that are used; a column that is constant there becomes 0.

    `australian` does not come with the package. It is looked for as `australian.csv` in `data_dir`, in the
    folder that the environment variable `QUELL_DATA_DIR` names, and in the cache (`quell` under
    `XDG_CACHE_HOME` or `~/.cache`); then scikit-learn, if installed, downloads it from OpenML to the cache.

    Args:
        name: one of `NAMES`.
        data_dir: folder to look in first; only `australian` needs one.

    Returns:
        The scaled features with an intercept column, and labels -1 or +1.

    Raises:
        ValueError: the name is not known, or a file that was found does not hold the published values.
        DatasetUnavailable: `australian` was neither found nor downloaded.

    Example:
        >>> load("sonar")
        Dataset('sonar': 208 rows, 60 features and an intercept)
    """
    check_name("The data set", name, NAMES)
    values = _READERS[name](None if data_dir is None else Path(data_dir))
    features = np.column_stack([_scale(values[:, :-1]), np.ones(len(values))])
    labels = 2.0 * values[:, -1] - 1.0
    features.setflags(write=False)
    labels.setflags(write=False)
    return Dataset(name, features, labels)


def _scale(columns: np.ndarray) -> np.ndarray:
    low, high = columns.min(axis=0), columns.max(axis=0)
    varies = high > low
    span = np.where(varies, high - low, 1.0)
    return np.where(varies, 2.0 * (columns - low) / span - 1.0, 0.0)


def _packaged(table: _Table) -> np.ndarray:
    return _read(Path(__file__).with_name("data") / table.file, table)


def _half(values: np.ndarray) -> np.ndarray:
    rows = np.random.default_rng(HALF_SEED).permutation(len(values))[: (len(values) + 1) // 2]
    return values[np.sort(rows)]


def _australian(data_dir: Path | None) -> np.ndarray:
    named = [Path(folder).expanduser() for folder in (data_dir, os.environ.get("QUELL_DATA_DIR")) if folder]
    folders = [*named, cache_folder()]
    for folder in folders:
        if (path := folder / _AUSTRALIAN.file).is_file():
            return _read(path, _AUSTRALIAN)
    try:
        values = _download()
    # Whatever stops the download (no scikit-learn, no network, changed values), the advice is the same.
    except Exception as error:
        raise DatasetUnavailable(_unavailable_message(folders, error)) from error
    with contextlib.suppress(OSError):  # a cache that cannot be written only costs the next download
        _save(values, cache_folder() / _AUSTRALIAN.file)
    return values


def _unavailable_message(folders: list[Path], error: Exception) -> str:
    reason = "scikit-learn is not installed" if isinstance(error, ImportError) else str(error).rstrip(".")
    return (
        f"The data set 'australian' needs {_AUSTRALIAN.file} or a download, got no such file in "
        f"{', '.join(str(folder) for folder in folders)} and no download from OpenML ({reason}). "
        "Try `pip install 'quell[datasets]'` and a network, or put the file "
        f"({_description(_AUSTRALIAN)}) in a folder DIR and `export QUELL_DATA_DIR=DIR` "
        "(in Python: `load('australian', data_dir='DIR')`)."
    )


def _description(table: _Table) -> str:
    return (
        f"a header line, then {table.num_data} rows of {table.num_features} features and a label 0 or 1, "
        "comma-separated, nothing missing"
    )


def _read(path: Path, table: _Table) -> np.ndarray:
    try:
        return _verified(np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, encoding="utf-8"), table)
    except ValueError as error:
        raise ValueError(
            f"{path} must be the published {table.file} ({_description(table)}), but {error}; "
            f"put an unchanged copy in its place, or try `rm '{path}'` so that quell looks elsewhere."
        ) from error


def _verified(values: np.ndarray, table: _Table) -> np.ndarray:
    """The values sorted by their columns, if they are the published ones; the error completes a sentence."""
    if values.shape != (table.num_data, table.num_features + 1):
        raise ValueError(f"it holds a table of shape {values.shape}")
    if bad := int((~np.isfinite(values)).sum()):
        raise ValueError(f"it holds {bad} NaN or infinite entries")
    values = values[np.lexsort(values.T[::-1])] + 0.0  # minus zero becomes zero
    if hashlib.sha256(values.astype("<f8").tobytes()).hexdigest() != table.digest:
        raise ValueError("its values are not the published ones (the checksum differs)")
    return values


def _download() -> np.ndarray:
    """The table from OpenML; nominal columns arrive as positions in their list of categories."""
    from sklearn.datasets import fetch_openml

    fetch: Any = fetch_openml  # its declared return type is a tuple; without return_X_y it is a Bunch
    with _socket_timeout(_DOWNLOAD_SECONDS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a failed attempt is told once, by our own message
        found = fetch(data_id=_OPENML_ID, as_frame=False, parser="liac-arff", cache=False, n_retries=1)
    columns = np.array(found.data, dtype=np.float64)
    for position, name in enumerate(found.feature_names):
        if name in found.categories:
            categories = np.array(found.categories[name], dtype=np.float64)
            columns[:, position] = categories[columns[:, position].astype(int)]
    labels = np.array(found.target, dtype=np.float64)
    return _verified(np.column_stack([columns, labels]), _AUSTRALIAN)


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """`fetch_openml` has no timeout of its own, and a silent network would hang it for minutes."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _save(values: np.ndarray, path: Path) -> None:
    """Write the table to the cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ",".join([*(f"a{i}" for i in range(1, values.shape[1])), "label"])
    options: dict[str, Any] = {"fmt": "%.15g", "delimiter": ",", "header": header, "comments": ""}
    write_atomically(path, lambda file: np.savetxt(file, values, **options))


_READERS: dict[str, Callable[[Path | None], np.ndarray]] = {
    "ionosphere": lambda _: _half(_packaged(_IONOSPHERE)),
    "ionosphere-full": lambda _: _packaged(_IONOSPHERE),
    "australian": _australian,
    "sonar": lambda _: _packaged(_SONAR),
}

NAMES: tuple[str, ...] = tuple(_READERS)
"""The names that `load` knows."""
