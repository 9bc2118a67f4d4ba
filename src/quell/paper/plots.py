# SPDX-License-Identifier: Apache-2.0
"""Figures of the reproduction; the only file of `quell.paper` that draws."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quell.paper.table1 import Cell, record_interval

# Okabe and Ito's palette, readable with the common forms of colour blindness.
STYLE: dict[str, dict[str, Any]] = {
    "none": {"color": "#000000", "linestyle": "-"},
    "S4": {"color": "#E69F00", "linestyle": "-"},
    "S5": {"color": "#56B4E9", "linestyle": "-"},
    "S6": {"color": "#009E73", "linestyle": "--"},
    "S7": {"color": "#D55E00", "linestyle": "-"},
    "c5": {"color": "#0072B2", "linestyle": ":"},
    "c7": {"color": "#CC79A7", "linestyle": ":"},
}


def draw_table1(cells: Sequence[Cell], path: Path) -> None:
    """Draw the median ELBO against the iteration, one panel a data set, and save it as a PNG."""
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.dataset for cell in cells))
    figure = Figure(figsize=(4.6 * len(names), 4.0), layout="constrained")
    for column, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), column + 1)
        mine = [cell for cell in cells if cell.dataset == name]
        for cell in mine:
            middle = np.median(np.nan_to_num(cell.curves, nan=-1e30), axis=0)
            steps = np.arange(middle.size) * record_interval(cell.steps)
            label = "base gradient" if cell.variates == "none" else f"+ {cell.variates}"
            axes.plot(steps, middle, label=label, linewidth=1.8, **STYLE.get(cell.variates, {}))
        best = mine[0].optimum
        axes.axhline(best, color="#777777", linewidth=1.0)
        axes.annotate("optimum", (0, best), textcoords="offset points", xytext=(4, 4), color="#555555")
        worst = min(float(np.median(np.nan_to_num(cell.curves[:, -1], nan=-1e30))) for cell in mine)
        axes.set_ylim(max(worst, best * 4) * 1.15, best + 0.08 * abs(best))
        axes.set_title(f"{name} (learning rate {mine[0].learning_rate:g})")
        axes.set_xlabel("iteration")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("ELBO in nats, median of the runs")
    figure.axes[0].legend(loc="lower right", fontsize="small")
    figure.savefig(path, dpi=150)
