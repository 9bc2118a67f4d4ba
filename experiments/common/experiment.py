# SPDX-License-Identifier: Apache-2.0
"""Experiments: settings that determine a result, which is computed in a worker process and kept on disk."""

import abc
import dataclasses
import functools
import hashlib
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import jax

import quell
from quell.paper.datasets import Dataset

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class AbstractExperiment(abc.ABC, Generic[Result]):
    """One experiment: its fields are its settings, and determine its result.

    Attributes:
        result_type: a dataclass whose fields are strings, numbers and NumPy arrays.
    """

    result_type: ClassVar[type]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """For the progress bar and for file names."""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """Estimated time on one core; it orders the work and scales the progress bar."""

    @abc.abstractmethod
    def run(self) -> Result:
        """Compute the result, from the settings alone."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the settings, of the data, and of the source code of library and experiments."""
        digest = hashlib.sha256(_source_digest())
        digest.update(f"{type(self).__name__} x64={jax.config.read('jax_enable_x64')}".encode())
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            digest.update(f" {field.name}=".encode())
            digest.update(_data_bytes(value) if isinstance(value, Dataset) else repr(value).encode())
        return digest.hexdigest()


def _data_bytes(dataset: Dataset) -> bytes:
    return dataset.name.encode() + dataset.features.tobytes() + dataset.labels.tobytes()


@functools.cache
def _source_digest() -> bytes:
    digest = hashlib.sha256()
    for folder in (Path(quell.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.digest()
