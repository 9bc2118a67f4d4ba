# SPDX-License-Identifier: Apache-2.0
"""The figure of a sweep; the only file of `quell.sweep` that draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from quell.diagnostics.theme import PALETTE, add_legend, finish, panels, short_name
from quell.sweep.result import SweepRow

_MARKERS = "osD^vPX"


def draw_sweep(rows: Sequence[SweepRow], *, theme: str) -> Any:
    """Draw the final ELBO against the learning rate, a line and a band per subset."""
    with panels("", theme, width=5.4, height=3.8) as (figure, (axes,)):
        bottom, top = _limits(rows)
        for number, name in enumerate(dict.fromkeys(row.subset for row in rows)):
            _draw_subset(axes, number, [row for row in rows if row.subset == name], floor=2 * bottom - top)
        axes.set_xscale("log")
        axes.set_ylim(bottom, top)
        finish(axes, "learning rate", "final ELBO in nats")
        add_legend(figure)
    return figure


def _draw_subset(axes: Any, number: int, rows: Sequence[SweepRow], *, floor: float) -> None:
    """The median over the seeds, and where they lie; a rate at which most diverged has no point.

    Args:
        axes: to draw on.
        number: of the subset.
        rows: of the subset.
        floor: below the visible range; lower values are drawn there.
    """
    rows = sorted(rows, key=lambda row: row.learning_rate)
    rates, name = [row.learning_rate for row in rows], rows[0].subset
    middle = np.maximum(_finite([row.median for row in rows]), floor)
    low, high = (np.maximum([getattr(row, which) for row in rows], floor) for which in ("lowest", "highest"))
    color, marker = PALETTE[number % len(PALETTE)], _MARKERS[number % len(_MARKERS)]
    axes.fill_between(rates, low, high, where=np.isfinite(middle), color=color, alpha=0.2, linewidth=0)
    axes.plot(rates, middle, color=color, marker=marker, markersize=5, linewidth=1.8, label=short_name(name))


def _limits(rows: Sequence[SweepRow]) -> tuple[float, float]:
    """Limits of the ELBO axis: all values, or four times the range of the upper half where others are far below."""
    drawn = [row for row in rows if np.isfinite(row.median)]
    if not drawn:
        return 0.0, 1.0
    top = max(row.highest for row in drawn)
    room = max(top - float(np.median([row.median for row in drawn])), 1e-6 * abs(top), 1e-12)
    lowest = min(row.lowest for row in drawn)
    return max(top - 4.0 * room, lowest - 0.1 * room), top + 0.1 * room


def _finite(values: Sequence[float]) -> np.ndarray:
    """Values that are not finite become NaN, which is not drawn."""
    given = np.asarray(values, float)
    return np.where(np.isfinite(given), given, np.nan)
