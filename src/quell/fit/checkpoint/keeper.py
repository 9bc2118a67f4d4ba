# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a fit, written to its checkpoint and read from it."""

import os
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quell.core.processes import first_does, is_first, is_there
from quell.fit.checkpoint.contents import check_header, check_state, read_history
from quell.fit.checkpoint.file import CheckpointError, named, plain_array, read_contents, restored, write_contents
from quell.fit.checkpoint.fingerprint import differences
from quell.fit.checkpoint.settings import Checkpoint
from quell.fit.history import History
from quell.fit.plan import FitPlan
from quell.fit.step import LoopState


class Snapshot(NamedTuple):
    """All that a fit needs to go on.

    Args:
        plan: of the fit, which the noise check may have changed.
        state: of the loop; with a leading axis for several fits.
        pieces: for each fit, consecutive histories.
        seconds: spent so far.
    """

    plan: FitPlan
    state: LoopState
    pieces: tuple[tuple[History, ...], ...]
    seconds: float

    @classmethod
    def first(cls, plan: FitPlan) -> "Snapshot":
        """The snapshot before the first step."""
        gradient = plan.algorithm.gradient
        none = History.empty(len(gradient.variates), len(gradient.weight_names))
        return cls(plan, plan.start, ((none,),) * plan.key.size, 0.0)

    @property
    def histories(self) -> tuple[History, ...]:
        """One history per fit."""
        return tuple(History.join(pieces) for pieces in self.pieces)

    def save(self, path: Path) -> None:
        """Write a checkpoint: state and history by name, and a header with the fit that they belong to."""
        arrays = named(self.state, plain_array, "state") | named(self.histories, plain_array, "history")
        step = int(np.max(plain_array(self.state.step)))
        header = {"step": step, "seconds": self.seconds, "fingerprint": self.plan.fingerprint}
        write_contents(path, header, arrays)

    @classmethod
    def load(cls, path: Path, plan: FitPlan) -> "Snapshot":
        """Read a checkpoint of the same fit; what the noise check found is kept."""
        if not is_there(path):
            raise CheckpointError(f"The checkpoint {path} must exist, got no such file; give the path of the fit.")
        header, arrays = read_contents(path)
        check_header(path, header)
        _check_same_fit(path, header["fingerprint"], plan.fingerprint)
        check_state(path, arrays, plan.start, "state")
        ((empty,), *_) = Snapshot.first(plan).pieces
        names = [f"history[{number}]" for number in range(plan.key.size)]
        histories = [(read_history(path, arrays, empty, name),) for name in names]
        return cls(plan, restored(arrays, plan.start, "state"), tuple(histories), float(header["seconds"]))


class Keeper:
    """Writes the snapshots of one run to its checkpoint, and reads the first one from it.

    Args:
        checkpoint: where and how often; `None` for nowhere.
    """

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        """Nothing is read or written yet."""
        self.checkpoint = checkpoint
        self.saved: Snapshot | None = None
        self.saved_at = time.monotonic()

    def first(self, plan: FitPlan) -> Snapshot:
        """The snapshot of the checkpoint, or a fresh one."""
        if self.checkpoint is None or not is_there(path := self.checkpoint.path):
            return Snapshot.first(plan)
        if not self.checkpoint.resume:
            raise CheckpointError(
                f"The checkpoint {path} already exists; pass `quell.Checkpoint({str(path)!r}, resume=True)` or another "
                "path."
            )
        self.saved = Snapshot.load(path, plan)
        first_does(lambda: _remove_unfinished(path))
        return self.saved

    def begin(self, snapshot: Snapshot) -> None:
        """Write the first snapshot, so that a bad path fails before the fit."""
        if self.checkpoint is None or self.saved is not None:
            return
        path = self.checkpoint.path
        _ = snapshot.plan.fingerprint  # taken in all processes, since each sums over its own rows
        try:
            first_does(lambda: self._write(path, snapshot))
        except OSError as error:
            raise CheckpointError(
                f"The checkpoint must be a file in an existing folder, got {path} ({error.strerror}); try "
                "`quell.Checkpoint('fit.quell')`."
            ) from error

    def after_chunk(self, snapshot: Snapshot, *, step: int) -> None:
        """Write, if it is time."""
        seconds = time.monotonic() - self.saved_at
        if self.checkpoint is not None and self.checkpoint.is_due(step=step, seconds=seconds):
            self.save(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Write, unless it is written already; a full disk does not end the fit."""
        if self.checkpoint is None or (self.saved is not None and self.saved.state is snapshot.state):
            return
        try:
            self._write(self.checkpoint.path, snapshot)
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

    def _write(self, path: Path, snapshot: Snapshot) -> None:
        _ = snapshot.plan.fingerprint
        if is_first():
            snapshot.save(path)
        self.saved, self.saved_at = snapshot, time.monotonic()


def _check_same_fit(path: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    if found := differences(there, here):
        raise CheckpointError(
            f"{path} was written by another fit: it differs in {found}; give this fit another path, or resume with the "
            "settings that the checkpoint was written with."
        )
    if there["jax"] != here["jax"]:
        warnings.warn(
            f"{path} was written with JAX {there['jax']} and is resumed with JAX {here['jax']}: the fit is the same to "
            "rounding, not bit for bit.",
            stacklevel=2,
        )


def _remove_unfinished(path: Path) -> None:
    """Remove what a process that was killed while it wrote has left."""
    for left in path.parent.glob(f".{path.name}.????????"):
        if left.is_file():
            os.unlink(left)
