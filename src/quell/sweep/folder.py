# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep: its settings, one file per finished subset, and the checkpoint of the running one."""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from quell.core.atomic import write_atomically
from quell.fit import Checkpoint, CheckpointError
from quell.fit.checkpoint.file import damaged, read_contents, write_contents
from quell.fit.checkpoint.fingerprint import PROGRAMS, differences, summary
from quell.sweep.subsets import SubsetResult

_ARRAYS = ("elbos", "errors", "diverged")


class SweepFolder:
    """A folder with one sweep, to which subsets may be added.

    Args:
        path: of the folder; it is created.
        settings: what all subsets have in common, as JSON. A folder with results of other settings is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Create the folder, or check that what it holds belongs to this sweep."""
        self.path, self.settings_file = path, path / "sweep-settings.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self._holds_results():
                self._check_settings(settings)
            text = json.dumps(settings, indent=1) + "\n"
            write_atomically(self.settings_file, lambda file: file.write(text.encode()))
        except OSError as error:
            raise ValueError(
                f"`out` must be a folder that can be written, got {path} ({error.strerror}); try `out='sweep'`."
            ) from None

    def find(self, subset: str, variates: dict[str, Any]) -> SubsetResult | None:
        """The result of a subset that was finished before; a file that cannot be read counts as missing.

        Args:
            subset: its name.
            variates: as JSON; a finished subset with the same name and other variates is refused.
        """
        path = self._result(subset)
        if not path.exists():
            return None
        try:
            header, arrays = read_contents(path)
            elbos, errors, diverged = (arrays[name] for name in _ARRAYS)
            result = SubsetResult(elbos, errors, diverged, float(header["seconds"]))
        except (CheckpointError, KeyError, OSError) as error:
            warnings.warn(f"{path} cannot be read, and {subset} is fitted again: {error}", stacklevel=2)
            return None
        self._refuse(differences(header["variates"], variates, f"variates of {subset}"))
        return result

    def write(self, subset: str, variates: dict[str, Any], result: SubsetResult) -> None:
        """Write the result of a finished subset atomically."""
        arrays = {name: np.asarray(getattr(result, name)) for name in _ARRAYS}
        header = {"subset": subset, "variates": variates, "seconds": result.seconds}
        write_contents(self._result(subset), header, arrays)
        for left in self.path.glob(f"{_file_name(subset)}-*.part"):
            left.unlink()

    def checkpoint(self, subset: str, num_fits: int) -> Checkpoint:
        """The checkpoint of the fits of a subset.

        Args:
            subset: its name.
            num_fits: padding included; a machine with another number of devices starts the subset again.
        """
        path = self.path / f"{_file_name(subset)}-{num_fits}.part"
        if path.exists():
            try:
                read_contents(path)
            except CheckpointError as error:
                warnings.warn(f"{error} {subset} is fitted again.", stacklevel=2)
                path.unlink()
        return Checkpoint(path, resume=True)

    def _holds_results(self) -> bool:
        return any(any(self.path.glob(f"*.{kind}")) for kind in ("result", "part"))

    def _check_settings(self, settings: dict[str, Any]) -> None:
        try:
            there = json.loads(self.settings_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged(self.settings_file, str(error)) from error
        here = json.loads(json.dumps(settings))  # tuples become lists
        if there.get("jax") != here["jax"]:
            skipped = {"jax", "optimizer", *PROGRAMS}
            there, here = ({name: part[name] for name in part if name not in skipped} for part in (there, here))
        self._refuse(differences(there, here))

    def _refuse(self, found: list[str]) -> None:
        if not found:
            return
        raise ValueError(
            f"{self.path} holds a sweep with other settings: it differs in {summary(found)}; give the same settings, "
            "or another folder."
        )

    def _result(self, subset: str) -> Path:
        return self.path / f"{_file_name(subset)}.result"


def _file_name(subset: str) -> str:
    """A valid file name that no other subset has."""
    slug = re.sub(r"[^A-Za-z0-9+]+", "-", subset)[:40].strip("-")
    return f"{slug}-{hashlib.sha256(subset.encode()).hexdigest()[:8]}"
