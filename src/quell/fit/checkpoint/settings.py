# SPDX-License-Identifier: Apache-2.0
"""Where and how often a fit is written to disk."""

from pathlib import Path

import equinox as eqx

from quell.core.checks import check_count, check_positive


class Checkpoint(eqx.Module):
    """A file that a fit can be resumed from, bit for bit as if it had not been interrupted.

    It is written at the start, every so many steps or minutes, on Ctrl-C, on any error, and at the end, always
    atomically: a process killed while it writes leaves the previous file. It holds parameters, the optimiser's state,
    moments, the states of the approximations, the history, and a fingerprint of the fit: a checkpoint of other data, of
    another model, family, sampler or key, or of other variates is refused, with what differs. Settings inside an
    optimiser, such as its learning rate, cannot be compared: give the same. The number of devices and processes may
    change; then the fit is the same to rounding. Of several processes the first reads and writes the file.

    To resume, call the same fit with `resume=True`. It may have more `steps` than before, unless its optimiser depends
    on them, as the default one does for families that are not Gaussian. What
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

    def is_due(self, *, step: int, seconds: float) -> bool:
        """Whether to write after a step, so many seconds after the last time."""
        if self.every_steps is not None and step % self.every_steps == 0:
            return True
        minutes = self.every_minutes or (1.0 if self.every_steps is None else None)
        return minutes is not None and seconds >= 60.0 * minutes
