# SPDX-License-Identifier: Apache-2.0
"""The folder that `quell fit` writes."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import quell
from quell.cli.fit_settings import FitSettings
from quell.cli.folder_lock import locked
from quell.core.atomic import write_atomically
from quell.core.processes import are_several, is_first
from quell.diagnostics.summary import named_leaves
from quell.fit import FitResult
from quell.fit.checkpoint.file import archive_bytes

_DRAWS = 1000


class FitFolder:
    """A folder with one fit: its settings, its checkpoint and its results.

    Args:
        path: of the folder.
    """

    def __init__(self, path: Path) -> None:
        """Nothing is read or written yet."""
        self.path = path
        self.lock = path / "fit.lock"
        self.settings, self.checkpoint = path / "settings.json", path / "checkpoint.quell"
        self.result, self.posterior, self.report = path / "result.json", path / "posterior.npz", path / "report.html"

    def read_settings(self) -> FitSettings:
        """The options of the fit."""
        return self._read_begun()[0]

    def check(self, settings: FitSettings, *, resume: bool) -> None:
        """Refuse to overwrite a fit, and to resume one with other settings."""
        if not (self.settings.exists() or self.checkpoint.exists()):
            return
        before, num_processes = self._read_begun()
        if not resume:
            now = jax.process_count()
            begun = "" if num_processes == now else f" (by {num_processes} processes; now: {now})"
            raise ValueError(f"{self.path} already has a fit{begun}; pass `--resume` or another `--out`.")
        if found := settings.differences(before):
            raise ValueError(
                f"To resume the fit in {self.path}, all options must be the same, got other values of "
                f"{', '.join(found)}; pass the same, or another `--out`."
            )

    @contextlib.contextmanager
    def at_work(self, settings: FitSettings, *, resume: bool) -> Iterator[None]:
        """Make the folder, write the options, and keep other processes out until the end."""
        with contextlib.ExitStack() as stack:
            with self._writable():
                self.path.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(self.lock))
            self.check(settings, resume=resume)  # another process may have been here since the first check
            self._write_settings(settings)
            yield

    def _write_settings(self, settings: FitSettings) -> None:
        with self._writable():
            begun = {
                "quell": quell.__version__,
                "processes": jax.process_count(),
                "options": dataclasses.asdict(settings),
            }
            self._write_json(self.settings, begun)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"`--out` must be a writable folder, got {self.path} ({error.strerror}); try `--out fit`."
            ) from None

    def write_outputs(self, result: FitResult, *, seed: int) -> None:
        """Write summary, draws and report; the same fit and seed give the same draws.

        Several processes evaluate the ELBO together, and the first writes. The report needs all data in one process.
        """
        elbo_key, draw_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 2**31 - 1))
        elbo = result.elbo(elbo_key)
        summary = {
            "status": result.status.name.lower(),
            "advice": result.status.value,
            "elbo": _finite(elbo.value),
            "elbo_standard_error": _finite(elbo.standard_error),
            "gap": None if result.gap is None else _finite(result.gap.value),
            "gap_standard_error": None if result.gap is None else _finite(result.gap.standard_error),
            "khat": _finite(result.final_khat.value),
            "corrected": result.corrects,
            "warnings": list(result.warnings),
            "steps": result.history.num_steps,
            "skipped": result.history.num_skipped,
            "seconds": dataclasses.asdict(result.seconds),
            "chosen": None if result.choice is None else result.choice.reason,
            "parameters": {
                name: {"mean": _finite(row["mean"]), "sd": _finite(row["std"])}
                for name, row in result.summary(draw_key, _DRAWS).as_dict().items()
            },
        }
        draws = {name: np.asarray(leaf) for name, leaf in named_leaves(result.sample(draw_key, _DRAWS)).items()}
        try:
            self._write_files(result, summary, draws)
        except OSError as error:
            raise ValueError(
                f"{self.path} must be a writable folder with room for the outputs, got an error ({error.strerror}); "
                f"the fit is kept in {self.checkpoint.name}, so try `quell report {self.path}` later."
            ) from None

    def _write_files(self, result: FitResult, summary: dict[str, Any], draws: dict[str, np.ndarray]) -> None:
        if is_first():
            self._write_json(self.result, summary)
            write_atomically(self.posterior, lambda file: file.write(archive_bytes(draws)))
        if not are_several():
            result.report(self.report)

    def _read_begun(self) -> tuple[FitSettings, int]:
        """The options of the fit, and the number of processes that started it."""
        try:
            begun = json.loads(self.settings.read_text(encoding="utf-8"))
            return FitSettings(**begun["options"]), int(begun["processes"])
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"The folder must be one that `quell fit` wrote, got {self.path} ({self.settings.name}: {error}); try "
                "`quell fit model.py --out fit`."
            ) from error

    def _write_json(self, path: Path, content: Any) -> None:
        text = json.dumps(content, indent=2, allow_nan=False) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
