# SPDX-License-Identifier: Apache-2.0
"""What a callback is told between chunks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from quell.fit.history import History


class FitProgress(eqx.Module):
    """How far a fit has come.

    Args:
        fit: number of the fit among those of `fit_many`; 0 for `fit`.
        step: steps done.
        steps: steps in all.
        params: of the family, as they are now.
        recent: history of the steps since the callback was called before.
        seconds: spent so far.
    """

    fit: int
    step: int
    steps: int
    params: PyTree
    recent: History
    seconds: float


Callback = Callable[[FitProgress], Any]
"""Called between chunks; returning True ends the fit."""
