# SPDX-License-Identifier: Apache-2.0
"""What a sweep keeps in its folder: its settings, a file for each finished subset, and one for a subset on its way."""

import hashlib
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from quell.core.atomic import write_atomically
from quell.fit import Checkpoint, CheckpointError
from quell.fit.checkpoint_file import damaged, read_contents, write_contents
from quell.fit.fingerprint import PROGRAMS, differences
from quell.sweep.piece import Piece

_MOST_NAMED = 5


class SweepFolder:
    """A folder with one sweep, to which subsets may be added.

    Args:
        path: of the folder; it is made.
        settings: what all subsets have in common, as JSON has it. A folder with results of others is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Make the folder, or look whether what it holds belongs to this sweep."""
        self.path, self.settings_file = path, path / "sweep-settings.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
            if self._holds_results():
                self._check_settings(settings)
            text = json.dumps(settings, indent=1) + "\n"
            write_atomically(self.settings_file, lambda file: file.write(text.encode()))
        except OSError as error:
            raise ValueError(
                f"`out` was given as {path}, where nothing can be written ({error.strerror}). A folder was needed. "
                "Write for example `out='sweep'`."
            ) from None

    def find(self, subset: str, variates: dict[str, Any]) -> Piece | None:
        """The numbers of a subset that was finished before; a file that cannot be read counts as missing.

        Args:
            subset: its name.
            variates: in words; a finished subset with the same name and other variates is refused.
        """
        path = self._piece(subset)
        if not path.exists():
            return None
        try:
            header, arrays = read_contents(path)
            piece = Piece(arrays["elbos"], arrays["errors"], arrays["diverged"], float(header["seconds"]))
        except (CheckpointError, KeyError, OSError) as error:
            warnings.warn(f"{path} cannot be read, and {subset} is fitted again: {error}", stacklevel=2)
            return None
        self._refuse(differences(header["variates"], variates, f"variates of {subset}"))
        return piece

    def keep(self, subset: str, variates: dict[str, Any], piece: Piece) -> None:
        """Write the numbers of a finished subset; a reader sees all of them or nothing."""
        arrays = {name: np.asarray(getattr(piece, name)) for name in ("elbos", "errors", "diverged")}
        header = {"subset": subset, "variates": variates, "seconds": piece.seconds}
        write_contents(self._piece(subset), header, arrays)
        for left in self.path.glob(f"{_file_name(subset)}-*.part"):
            left.unlink()

    def checkpoint(self, subset: str, num_fits: int) -> Checkpoint:
        """Where the fits of a subset are kept on their way.

        Args:
            subset: its name.
            num_fits: with those that fill up devices; a machine with other devices starts the subset anew.
        """
        path = self.path / f"{_file_name(subset)}-{num_fits}.part"
        if path.exists():
            try:
                read_contents(path)
            except CheckpointError as error:
                warnings.warn(f"{error} {subset} is fitted anew.", stacklevel=2)
                path.unlink()
        return Checkpoint(path, resume=True)

    def _holds_results(self) -> bool:
        return any(any(self.path.glob(f"*.{kind}")) for kind in ("piece", "part"))

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
        more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise ValueError(
            f"{self.path} holds a sweep with other settings: it differs in {'; '.join(found[:_MOST_NAMED])}{more}. "
            "The same were needed to go on. Give them as they were, or another folder."
        )

    def _piece(self, subset: str) -> Path:
        return self.path / f"{_file_name(subset)}.piece"


def _file_name(subset: str) -> str:
    """A name that any disk takes, and that no other subset has."""
    slug = re.sub(r"[^A-Za-z0-9+]+", "-", subset)[:40].strip("-")
    return f"{slug}-{hashlib.sha256(subset.encode()).hexdigest()[:8]}"
