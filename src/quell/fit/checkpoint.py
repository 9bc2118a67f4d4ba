# SPDX-License-Identifier: Apache-2.0
"""Where and how often a fit is kept on disk."""

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx

from quell.core.checks import check_count, check_positive
from quell.core.processes import first_does, is_first, is_there
from quell.fit.checkpoint_file import CheckpointError, read_contents
from quell.fit.snapshot import Snapshot, load_snapshot, save_snapshot

_DEFAULT_MINUTES = 1.0


class Checkpoint(eqx.Module):
    """A file that a fit can be resumed from, bit for bit as if it had not been interrupted.

    It is written at the start, every so many steps or minutes, on Ctrl-C, on any error, and at the end, always as a
    whole: a process killed while it writes leaves the file before. It holds parameters, the optimiser's state, moments,
    the states of the approximations, the history, and a fingerprint of the problem: a checkpoint of other data, of
    another model, family, sampler or key, or of other variates is refused, with what differs. What hides in an
    optimiser (its learning rate) cannot be compared: give the same. The number of devices and processes may be another;
    then the fit goes on to rounding. Of several processes the first reads and writes the file.

    To go on, call the same fit with `resume=True`. It may have more `steps` than before, if its optimiser does not
    depend on them as the default one of families that are not Gaussian does, and that of a fit with
    `result.choice.anneals`. What was chosen automatically is kept;
    a long fit that chooses its variates by the clock is resumed with them, but not bit for bit. There is no pickle in
    the file.

    Cost: each time the whole file is written: the state, and about 30 to 100 bytes for each step so far and 10 for each
    variate and step. That is 10 MB for 100 000 steps with seven variates; let some seconds lie between two.

    Args:
        path: of the file; its folder must be there.
        every_steps: steps between two checkpoints.
        every_minutes: minutes between two; 1 where neither is given.
        resume: go on from the file if it is there, and start anew if not. Without it a file that is there is an error,
            and is left alone.

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
        """What the fit that is to be resumed had chosen automatically; `None` where there is nothing to resume."""
        if not (self.resume and is_there(self.path)):
            return None
        return read_contents(self.path).header.get("choice")

    @property
    def seconds_between(self) -> float | None:
        """Seconds between two checkpoints, where the clock decides."""
        if self.every_minutes is None and self.every_steps is not None:
            return None
        return 60.0 * (self.every_minutes or _DEFAULT_MINUTES)


class Keeper:
    """Keeps one fit in its checkpoint.

    Args:
        checkpoint: where and how often.
        fingerprint: of the fit; made only where there is a checkpoint.
    """

    def __init__(self, checkpoint: Checkpoint | None, fingerprint: Callable[[], dict[str, Any]]) -> None:
        """Nothing is read or written yet."""
        self.checkpoint = checkpoint
        self.fingerprint = {} if checkpoint is None else fingerprint()
        self.choice: dict[str, Any] | None = None
        self.saved: Snapshot | None = None
        self.saved_at = time.monotonic()

    def change(self, fingerprint: Callable[[], dict[str, Any]], choice: dict[str, Any]) -> None:
        """Another gradient was chosen: what is written from now on belongs to it."""
        self.fingerprint = {} if self.checkpoint is None else fingerprint()
        self.choice = choice

    def begin(self, fresh: Snapshot) -> Snapshot:
        """What the checkpoint holds, or a fresh start that is written at once, so that a bad path is seen at once."""
        if self.checkpoint is None:
            return fresh
        path = self.checkpoint.path
        if is_there(path):
            if not self.checkpoint.resume:
                raise CheckpointError(
                    f"The checkpoint {path} is there already. A new path, or the wish to go on, was needed. "
                    f"Write `quell.Checkpoint({str(path)!r}, resume=True)` to go on, or give another path."
                )
            self.saved = self.read(fresh)
            self.saved_at = time.monotonic()
            first_does(lambda: _remove_unfinished(path))
            return self.saved
        first_does(lambda: self._write_first(fresh))
        return fresh

    def _write_first(self, fresh: Snapshot) -> None:
        assert self.checkpoint is not None
        path = self.checkpoint.path
        try:
            self._write(fresh)
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint {path} cannot be written ({error.strerror}). A file in a folder that is there was "
                f"needed. Write for example `quell.Checkpoint('fit.quell')`, or make the folder {path.parent}."
            ) from error

    def read(self, fresh: Snapshot) -> Snapshot:
        """What the checkpoint holds."""
        assert self.checkpoint is not None
        if not is_there(self.checkpoint.path):
            raise CheckpointError(
                f"The checkpoint {self.checkpoint.path} was not found. A file that a fit wrote was needed. "
                "Give the path that the fit was given."
            )
        return load_snapshot(self.checkpoint.path, fresh.state, self.fingerprint)

    def after_chunk(self, reached: Snapshot, *, step: int) -> None:
        """Write, if it is time."""
        if self.checkpoint is None:
            return
        every, seconds = self.checkpoint.every_steps, self.checkpoint.seconds_between
        by_steps = every is not None and step % every == 0
        if by_steps or (seconds is not None and time.monotonic() - self.saved_at >= seconds):
            self.save(reached)

    def save(self, reached: Snapshot) -> None:
        """Write what is new; a disk that is full does not end the fit."""
        if self.checkpoint is None or (self.saved is not None and self.saved.state is reached.state):
            return
        try:
            self._write(reached)
        except OSError as error:
            text = f"The checkpoint {self.checkpoint.path} could not be written ({error.strerror})"
            warnings.warn(f"{text}. The fit goes on; the checkpoint before it is still there.", stacklevel=2)

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

    def _write(self, reached: Snapshot) -> None:
        assert self.checkpoint is not None
        if is_first():
            save_snapshot(self.checkpoint.path, reached, self.fingerprint, self.choice)
        self.saved, self.saved_at = reached, time.monotonic()


def _remove_unfinished(path: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for left in path.parent.glob(f".{path.name}.????????"):
        if left.is_file():
            os.unlink(left)
