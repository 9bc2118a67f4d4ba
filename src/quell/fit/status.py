# SPDX-License-Identifier: Apache-2.0
"""How a fit ended, with advice."""

import enum


class Status(enum.Enum):
    """How a fit ended; the value is what to do about it."""

    CONVERGED = "What is left to gain is below the tolerance, or early stopping saw no more of it."
    NOT_CONVERGED = "More than the tolerance may be left to gain: take more `steps`, or a larger `tolerance`."
    COMPLETED = "All steps were taken; `result.gap`, where it can be measured, tells how much is left to gain."
    STOPPED = "The callback asked to stop; the result holds the last parameters."
    INTERRUPTED = (
        "Interrupted; the result holds the last parameters. To go on: `params=result.params` and another key, or the "
        "same fit with `checkpoint=quell.Checkpoint(path, resume=True)` where it had a checkpoint."
    )
    DIVERGED = (
        "A step would have made the parameters infinite or NaN; the result holds the last finite ones. "
        "Lower the learning rate, start from a smaller `init_scale`, or clip with "
        "`optax.chain(optax.clip_by_global_norm(1.0), optimizer)`. "
        "If only some draws are to blame, skip such steps with `max_skipped=10`."
    )


class DivergenceError(RuntimeError):
    """A fit has diverged, and `throw=True` was given."""
