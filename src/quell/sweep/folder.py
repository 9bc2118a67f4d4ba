# SPDX-License-Identifier: Apache-2.0
"""The folder of a sweep: its settings, one file per finished subset, and the checkpoint of the running one."""

import dataclasses
import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

from quell.core.atomic import write_atomically
from quell.fit import Checkpoint, CheckpointError
from quell.fit.checkpoint.file import damaged, read_contents, write_contents
from quell.fit.checkpoint.fingerprint import differences
from quell.sweep.result import SweepRow


class SweepFolder:
    """A folder with one sweep, to which subsets may be added.

    Args:
        path: of the folder; it is created.
        settings: what all subsets have in common, as JSON. A folder with results of other settings is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Create the folder, or check that what it holds belongs to this sweep."""
        self.path, file = path, path / "sweep-settings.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any([*path.glob("*.result"), *path.glob("*.part")]):
                self._refuse_others(_read_settings(file), settings)
            write_atomically(file, lambda opened: opened.write(f"{json.dumps(settings, indent=1)}\n".encode()))
        except OSError as error:
            raise ValueError(
                f"`out` must be a folder that can be written, got {path} ({error.strerror}); try `out='sweep'`."
            ) from None

    def find(self, subset: str, variates: dict[str, Any]) -> tuple[SweepRow, ...]:
        """The rows of a subset that was finished before; none where there is no file that can be read.

        Args:
            subset: its name.
            variates: as JSON; a finished subset with the same name and other variates is refused.
        """
        path = self._file(subset, ".result")
        if not path.exists():
            return ()
        try:
            header, _ = read_contents(path)
        except (CheckpointError, OSError) as error:
            warnings.warn(f"{path} cannot be read, and {subset} is fitted again: {error}", stacklevel=2)
            return ()
        self._refuse_others({f"variates of {subset}": header["variates"]}, {f"variates of {subset}": variates})
        return tuple(SweepRow(**row | {"elbos": tuple(row["elbos"])}) for row in header["rows"])

    def write(self, subset: str, variates: dict[str, Any], rows: tuple[SweepRow, ...]) -> None:
        """Write the rows of a finished subset atomically, and remove its checkpoints."""
        header = {"variates": variates, "rows": [dataclasses.asdict(row) for row in rows]}
        write_contents(self._file(subset, ".result"), header, {})
        for left in self.path.glob(self._file(subset, "-*.part").name):
            left.unlink()

    def checkpoint(self, subset: str, num_fits: int) -> Checkpoint:
        """The checkpoint of the fits of a subset.

        Args:
            subset: its name.
            num_fits: padding included; a machine with another number of devices starts the subset again.
        """
        path = self._file(subset, f"-{num_fits}.part")
        if path.exists():
            try:
                read_contents(path)
            except CheckpointError as error:
                warnings.warn(f"{error} {subset} is fitted again.", stacklevel=2)
                path.unlink()
        return Checkpoint(path, resume=True)

    def _refuse_others(self, there: dict[str, Any], here: dict[str, Any]) -> None:
        if found := differences(there, here):
            raise ValueError(
                f"{self.path} holds a sweep with other settings: it differs in {found}; give the same settings, or "
                "another folder."
            )

    def _file(self, subset: str, ending: str) -> Path:
        """A file with a valid name that no other subset has."""
        slug = re.sub(r"[^A-Za-z0-9+]+", "-", subset)[:40].strip("-")
        return self.path / f"{slug}-{hashlib.sha256(subset.encode()).hexdigest()[:8]}{ending}"


def _read_settings(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(file, str(error)) from error
