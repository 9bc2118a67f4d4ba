# SPDX-License-Identifier: Apache-2.0
"""Where and how often a fit is written to disk."""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx

from quell.core.checks import check_count, check_positive
from quell.core.processes import first_does, is_first, is_there
from quell.fit.checkpoint.file import CheckpointError, Snapshot, check_version, read_contents

_DEFAULT_MINUTES = 1.0


class Checkpoint(eqx.Module):
    """A file that a fit can be resumed from, bit for bit as if it had not been interrupted.

    It is written at the start, every so many steps or minutes, on Ctrl-C, on any error, and at the end, always
    atomically: a process killed while it writes leaves the previous file. It holds parameters, the optimiser's state,
    moments, the states of the approximations, the history, and a fingerprint of the fit: a checkpoint of other data, of
    another model, family, sampler or key, or of other variates is refused, with what differs. Settings inside an
    optimiser, such as its learning rate, cannot be compared: give the same. The number of devices and processes may
    change; then the fit is the same to rounding. Of several processes the first reads and writes the file.

    To resume, call the same fit with `resume=True`. It may have more `steps` than before, unless its optimiser depends
    on them, as the default one does for families that are not Gaussian and for a fit with `result.choice.anneals`. What
    was chosen automatically is kept. There is no pickle in the file.

    Cost: each time the whole file is written: the state, about 30 to 100 bytes per step so far, and 10 per variate and
    step. That is 10 MB for 100 000 steps with seven variates; leave some seconds between two checkpoints.

    Args:
        path: of the file; its folder must exist.
        every_steps: steps between two checkpoints.
        every_minutes: minutes between two checkpoints; 1 where neither is given.
        resume: resume from the file if it exists, and start from the beginning if not. Without it an existing file is
            an error, and is left alone.

    Example:
        >>> import jax, pathlib, quell, tempfile
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.quell"
        >>> options = dict(variates=(), steps=200, key=jax.random.key(0))
        >>> once = quell.fit(model, quell.MeanField(2), checkpoint=quell.Checkpoint(path, every_steps=100), **options)
        >>> again = quell.fit(model, quell.MeanField(2), checkpoint=quell.Checkpoint(path, resume=True), **options)
        >>> bool((once.params.loc == again.params.loc).all())
        True
    """

    path: Path = eqx.field(converter=Path)
    every_steps: int | None = None
    every_minutes: float | None = None
    resume: bool = False

    def __check_init__(self) -> None:
        """Refuse intervals that are not positive."""
        if self.every_steps is not None:
            check_count("every_steps", self.every_steps)
        if self.every_minutes is not None:
            check_positive("every_minutes", self.every_minutes)

    def read_choice(self) -> dict[str, Any] | None:
        """The automatic choice of the fit that is to be resumed; `None` where there is nothing to resume."""
        if not (self.resume and is_there(self.path)):
            return None
        header, _ = read_contents(self.path)
        check_version(self.path, header)
        return header["choice"]

    @property
    def seconds_between(self) -> float | None:
        """Seconds between two checkpoints, where the clock decides."""
        if self.every_minutes is None and self.every_steps is not None:
            return None
        return 60.0 * (self.every_minutes or _DEFAULT_MINUTES)


class Keeper:
    """Writes the snapshots of one run to its checkpoint, and reads the first one from it.

    Args:
        checkpoint: where and how often; `None` for nowhere.
        fingerprint: of the fit; called only where there is a checkpoint.
        choice: what was chosen automatically, as JSON.
    """

    def __init__(
        self,
        checkpoint: Checkpoint | None,
        fingerprint: Callable[[], dict[str, Any]],
        choice: dict[str, Any] | None = None,
    ) -> None:
        """Nothing is read or written yet."""
        self.checkpoint = checkpoint
        self.saved: Snapshot | None = None
        self.saved_at = time.monotonic()
        self.change(fingerprint, choice)

    def change(self, fingerprint: Callable[[], dict[str, Any]], choice: dict[str, Any] | None) -> None:
        """Another gradient was chosen: what is written from now on belongs to it."""
        self.fingerprint = {} if self.checkpoint is None else fingerprint()
        self.choice = choice

    def begin(self, fresh: Snapshot) -> Snapshot:
        """The snapshot of the checkpoint, or a fresh one, written now so that a bad path fails before the fit."""
        if self.checkpoint is None:
            return fresh
        path = self.checkpoint.path
        if not is_there(path):
            first_does(lambda: self._write_first(fresh))
            return fresh
        if not self.checkpoint.resume:
            raise CheckpointError(
                f"The checkpoint {path} already exists; pass `quell.Checkpoint({str(path)!r}, resume=True)` or another "
                "path."
            )
        self.saved, self.saved_at = self.read(fresh), time.monotonic()
        first_does(lambda: _remove_unfinished(path))
        return self.saved

    def read(self, fresh: Snapshot) -> Snapshot:
        """The snapshot of the checkpoint."""
        assert self.checkpoint is not None
        path = self.checkpoint.path
        if not is_there(path):
            raise CheckpointError(f"The checkpoint {path} must exist, got no such file; give the path of the fit.")
        return Snapshot.load(path, fresh.state, self.fingerprint)

    def after_chunk(self, snapshot: Snapshot, *, step: int) -> None:
        """Write, if it is time."""
        if self.checkpoint is None:
            return
        every, seconds = self.checkpoint.every_steps, self.checkpoint.seconds_between
        by_steps = every is not None and step % every == 0
        if by_steps or (seconds is not None and time.monotonic() - self.saved_at >= seconds):
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Write, unless it is written already; a full disk does not end the fit."""
        if self.checkpoint is None or (self.saved is not None and self.saved.state is snapshot.state):
            return
        try:
            self._write(snapshot)
        except OSError as error:
            text = f"The checkpoint {self.checkpoint.path} could not be written ({error.strerror})"
            warnings.warn(f"{text}. The fit goes on; the previous checkpoint is kept.", stacklevel=2)

    @property
    def advice(self) -> str:
        """How to go on after a process was lost."""
        if self.checkpoint is None:
            return "Its steps are lost; with `checkpoint=quell.Checkpoint('fit.quell')` they would not be."
        path = str(self.checkpoint.path)
        return (
            f"The first process kept the fit in {path}. To go on with any number of processes, fit again with "
            f"`quell.Checkpoint({path!r}, resume=True)`, or type `--resume`."
        )

    def _write(self, snapshot: Snapshot) -> None:
        assert self.checkpoint is not None
        if is_first():
            snapshot.save(self.checkpoint.path, self.fingerprint, self.choice)
        self.saved, self.saved_at = snapshot, time.monotonic()

    def _write_first(self, fresh: Snapshot) -> None:
        assert self.checkpoint is not None
        try:
            self._write(fresh)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint must be a file in an existing folder, got {self.checkpoint.path} ({error.strerror}); "
                "try `quell.Checkpoint('fit.quell')`."
            ) from error


def _remove_unfinished(path: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for left in path.parent.glob(f".{path.name}.????????"):
        if left.is_file():
            os.unlink(left)
