# SPDX-License-Identifier: Apache-2.0
"""How a fit ended, with advice."""

import enum


class Status(enum.Enum):
    """How a fit ended; the value is what to do about it."""

    COMPLETED = "All steps were taken."
    INTERRUPTED = "Interrupted; the result holds what was reached. To go on: `params=result.params` and another key."
    DIVERGED = (
        "A step would have made the parameters infinite or NaN; the result holds the last finite ones. "
        "Lower the learning rate, start from a smaller `init_scale`, or clip with "
        "`optax.chain(optax.clip_by_global_norm(1.0), optimizer)`."
    )


class DivergenceError(RuntimeError):
    """A fit that diverged and was asked to raise."""
