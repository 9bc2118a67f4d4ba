# SPDX-License-Identifier: Apache-2.0
"""Results of experiments, kept in a folder so that an interrupted command resumes where it stopped."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.experiment import AbstractExperiment, Result
from quell.fit.checkpoint.file import CheckpointError, read_contents, write_contents


class Store:
    """Results in a folder, one file each.

    A file's name holds the experiment's fingerprint: other settings, other data or other source code make another
    file. A file that cannot be read counts as missing.

    Args:
        folder: created with the first result.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is read or written yet."""
        self.folder = folder

    def find(self, experiment: AbstractExperiment[Result]) -> Result | None:
        """The result of an earlier run, if there is one."""
        try:
            header, arrays = read_contents(self._path(experiment))
            return experiment.result_type(**header, **arrays)
        except (OSError, CheckpointError, TypeError):
            return None

    def keep(self, experiment: AbstractExperiment[Result], result: Result) -> None:
        """Write a result; a reader sees all of it or nothing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fields = {field.name: getattr(result, field.name) for field in dataclasses.fields(experiment.result_type)}
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        header = {name: value for name, value in fields.items() if name not in arrays}
        write_contents(self._path(experiment), header, arrays)

    def _path(self, experiment: AbstractExperiment[Any]) -> Path:
        slug = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()).strip("-")
        return self.folder / f"{slug}-{experiment.fingerprint[:16]}.result"
