# SPDX-License-Identifier: Apache-2.0
"""The user's folder of posteriors: `data/NAME.npz` and the moments of the reference draws in `reference.json`."""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Reference:
    """Moments of the reference draws of a posterior.

    Attributes:
        names: of the scalar parameters, as `beta[2]`.
        means: of the draws.
        sds: standard deviations of the draws.
    """

    names: tuple[str, ...]
    means: np.ndarray
    sds: np.ndarray


@dataclasses.dataclass(frozen=True)
class PosteriorFolder:
    """A folder of posteriors.

    Attributes:
        path: with `reference.json` and `data/`.
    """

    path: Path

    @functools.cached_property
    def _entries(self) -> dict[str, Any]:
        file = self.path / "reference.json"
        if not file.is_file():
            raise ValueError(f"`--posteriordb` must be a folder with reference.json and data/, got {self.path}.")
        return json.loads(file.read_text(encoding="utf-8"))

    def names(self) -> list[str]:
        """Posteriors with a reference and data."""
        return [name for name in self._entries if self._data_file(name).is_file()]

    def data(self, name: str) -> dict[str, Any]:
        """The data of a posterior: arrays as arrays, numbers as numbers."""
        with np.load(self._data_file(name)) as file:
            return {key: file[key] if file[key].ndim else file[key].item() for key in file.files}

    def reference(self, name: str) -> Reference:
        """The reference moments of a posterior."""
        entry = self._entries[name]
        return Reference(tuple(entry["names"]), np.asarray(entry["means"]), np.asarray(entry["sds"]))

    def digest(self, name: str) -> str:
        """A digest of data and reference, so that a change of either is a new experiment."""
        text = json.dumps(self._entries[name], sort_keys=True).encode()
        return hashlib.sha256(text + self._data_file(name).read_bytes()).hexdigest()

    def _data_file(self, name: str) -> Path:
        return self.path / "data" / f"{name}.npz"
