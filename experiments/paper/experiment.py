# SPDX-License-Identifier: Apache-2.0
"""Experiments: pieces of the reproduction that run side by side, are kept on disk, and are not run twice."""

import abc
import dataclasses
import functools
import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import jax
import numpy as np

from experiments.paper.workers import run_jobs
from quell.core.atomic import write_atomically
from quell.paper.datasets import Dataset

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class AbstractExperiment(abc.ABC, Generic[Result]):
    """One piece: settings that say all there is to say, and what becomes of them.

    Attributes:
        result_type: a dataclass whose fields are texts, numbers and arrays.
    """

    result_type: ClassVar[type]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """For the progress and for file names."""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """A rough guess of the time on one core; it orders the work and tells how much is left."""

    @abc.abstractmethod
    def run(self) -> Result:
        """Do it. The result depends on the settings alone."""

    @functools.cached_property
    def fingerprint(self) -> str:
        """A digest of the settings, of the data and of the library's own source."""
        digest = hashlib.sha256(_source_digest())
        digest.update(f"{type(self).__name__} x64={jax.config.read('jax_enable_x64')}".encode())
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            digest.update(f" {field.name}=".encode())
            digest.update(_data_bytes(value) if isinstance(value, Dataset) else repr(value).encode())
        return digest.hexdigest()


class Store:
    """Results in a folder, one file each, so that an interrupted reproduction goes on where it was.

    A file's name holds the experiment's fingerprint: other settings, other data or another version of the library
    make another file. A file that cannot be read counts as missing.

    Args:
        folder: made with the first result.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is read or written yet."""
        self.folder = folder

    def find(self, experiment: AbstractExperiment[Result]) -> Result | None:
        """The result of an earlier run, if it is there."""
        try:
            with self._path(experiment).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                fields = {name: file[name] for name in file.files}
            return experiment.result_type(**{name: v.item() if v.ndim == 0 else v for name, v in fields.items()})
        except (OSError, ValueError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            return None

    def keep(self, experiment: AbstractExperiment[Result], result: Result) -> None:
        """Write a result; a reader sees all of it or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(experiment.result_type)}
        write_atomically(self._path(experiment), lambda file: np.savez(file, **fields))

    def _path(self, experiment: AbstractExperiment[Any]) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()).strip("-")
        return self.folder / f"{slug}-{experiment.fingerprint[:16]}.npz"


def longest_first(experiments: Sequence[AbstractExperiment[Any]]) -> list[AbstractExperiment[Any]]:
    """The order in which experiments are started, for an even load."""
    return sorted(experiments, key=lambda experiment: experiment.seconds, reverse=True)


def run_experiments(
    experiments: Sequence[AbstractExperiment[Any]],
    *,
    store: Store | None = None,
    num_workers: int = 1,
    on_done: Callable[[AbstractExperiment[Any]], None] = lambda experiment: None,
) -> list[Any]:
    """Run what is not in the store yet, the longest first, and return all results in the order asked for.

    Args:
        experiments: of any kinds.
        store: where results are found and kept.
        num_workers: processes that share the work; see `quell.paper.workers.run_jobs`.
        on_done: sees each experiment as its result is there, those found in the store first.
    """
    results: dict[str, Any] = {}
    for experiment in experiments:
        found = None if store is None else store.find(experiment)
        if found is not None:
            results[experiment.fingerprint] = found
            on_done(experiment)
    missing = longest_first([one for one in experiments if one.fingerprint not in results])
    for number, result in run_jobs(_run, missing, num_workers=num_workers):
        experiment = missing[number]
        if store is not None:
            store.keep(experiment, result)
        results[experiment.fingerprint] = result
        on_done(experiment)
    return [results[experiment.fingerprint] for experiment in experiments]


def _run(experiment: AbstractExperiment[Result]) -> Result:
    return experiment.run()


def _data_bytes(dataset: Dataset) -> bytes:
    return dataset.name.encode() + dataset.features.tobytes() + dataset.labels.tobytes()


@functools.cache
def _source_digest() -> bytes:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.digest()
