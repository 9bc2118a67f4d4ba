# SPDX-License-Identifier: Apache-2.0
"""Figures of the reproduction; the only file of `quell.paper` that draws."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from quell.paper.figure1 import Figure1
from quell.paper.figure4 import Panel
from quell.paper.sweep import LEARNING_RATES, SHOWN, Sweep, record_interval
from quell.paper.table1 import Cell

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
    names = list(dict.fromkeys(cell.dataset for cell in cells))
    figure, panels = _panels(1, len(names))
    for axes, name in zip(panels[0], names, strict=True):
        mine = [cell for cell in cells if cell.dataset == name]
        for cell in mine:
            middle = np.median(np.nan_to_num(cell.curves, nan=-np.inf), axis=0)
            _line(axes, np.arange(middle.size) * record_interval(cell.steps), middle, cell.variates)
        _show_optimum(axes, mine[0].optimum, [float(np.median(cell.curves[:, -1])) for cell in mine])
        axes.set_title(f"{name}, learning rate {mine[0].learning_rate:g}")
        axes.set_xlabel("iteration")
    _finish(figure, panels, "ELBO in nats, median of the runs", path)


def draw_figure1(result: Figure1, path: Path) -> None:
    """Draw squared norm and variance of the gradient along the sequence of weights."""
    figure, panels = _panels(1, 2)
    left, right = panels[0]
    for column, values in result.sq_norm.items():
        _line(left, result.steps[1:], values[1:], column)
        _line(right, result.steps[1:], result.variance(column)[1:], column)
    left.set_title(f"{result.dataset}: squared norm")
    right.set_title(f"{result.dataset}: variance")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.set_xlabel("iteration of one sequence of weights")
    _finish(figure, panels, "of the gradient of the ELBO a datum", path)


def draw_figure2(sweeps: Sequence[Sweep], path: Path) -> None:
    """Draw the ELBO against the iteration at two learning rates and at the best one for each iteration."""
    names = list(dict.fromkeys(sweep.dataset for sweep in sweeps))
    figure, panels = _panels(len(names), 3)
    for row, name in zip(panels, names, strict=True):
        mine = [sweep for sweep in sweeps if sweep.dataset == name]
        for sweep in mine:
            shown = [sweep.median[_nearest(sweep, factor)] for factor in SHOWN]
            for axes, curve in zip(row, [*shown, sweep.envelope], strict=True):
                _line(axes, sweep.iterations, curve, sweep.variates)
        titles = [f"learning rate {mine[0].rates[_nearest(mine[0], factor)]:g}" for factor in SHOWN]
        for axes, title in zip(row, [*titles, "best rate for each iteration"], strict=True):
            _show_optimum(axes, mine[0].optimum, [float(sweep.envelope[-1]) for sweep in mine])
            axes.set_title(f"{name}, {title}")
            axes.set_xlabel("iteration")
    _finish(figure, panels, "ELBO in nats, median of the runs", path)


def draw_figure3(sweeps: Sequence[Sweep], path: Path) -> None:
    """Draw the final ELBO against the learning rate."""
    names = list(dict.fromkeys(sweep.dataset for sweep in sweeps))
    figure, panels = _panels(1, len(names))
    for axes, name in zip(panels[0], names, strict=True):
        mine = [sweep for sweep in sweeps if sweep.dataset == name]
        for sweep in mine:
            _line(axes, sweep.rates, sweep.median[:, -1], sweep.variates, marker="o", markersize=3)
        _show_optimum(axes, mine[0].optimum, [float(sweep.envelope[-1]) for sweep in mine])
        axes.set_xscale("log")
        axes.set_title(name)
        axes.set_xlabel("learning rate")
    _finish(figure, panels, f"ELBO after {sweeps[0].steps} iterations, median", path)


def draw_figure4(results: Sequence[Panel], path: Path) -> None:
    """Draw the expected squared norm against the prior's strength, a line for each number of evaluations."""
    figure, panels = _panels(1, len(results))
    for axes, panel in zip(panels[0], results, strict=True):
        for (size, values), shade in zip(panel.sq_norm.items(), _SHADES, strict=False):
            axes.plot(panel.strengths, values, label=f"M = {size}", color=shade, linewidth=1.8)
        axes.axhline(panel.base_sq_norm, color="#777777", linewidth=1.0, linestyle="--", label="base gradient")
        axes.axhline(panel.best_sq_norm, color="#777777", linewidth=1.0, linestyle=":", label="best weights")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(
            f"{panel.dataset}, moments {f'{panel.lag} iterations old' if panel.lag else 'of the same weights'}"
        )
        axes.set_xlabel("v0")
    _finish(figure, panels, "expected squared norm of the gradient", path)


_SHADES = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2")


def _panels(rows: int, columns: int) -> tuple[Any, list[list[Any]]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * columns, 3.8 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def _line(axes: Any, x: Any, y: Any, column: str, **options: Any) -> None:
    label = "base gradient" if column == "none" else f"with {column}"
    finite = np.where(np.isfinite(y), y, np.nan)
    axes.plot(x, finite, label=label, linewidth=1.8, **STYLE.get(column, {}), **options)


def _show_optimum(axes: Any, best: float, finals: Sequence[float]) -> None:
    """Mark the optimum, and cut off what lies far below the worst final value worth seeing."""
    axes.axhline(best, color="#777777", linewidth=1.0, label="optimum")
    worst = min((value for value in finals if np.isfinite(value)), default=2 * best)
    bottom = max(worst, 4.5 * best)
    axes.set_ylim(bottom - 0.1 * (best - bottom), best + 0.06 * (best - bottom))


def _nearest(sweep: Sweep, factor: float) -> int:
    """The learning rate that is nearest to a multiple of the data set's own."""
    ratios = np.array(sweep.rates) / LEARNING_RATES[sweep.dataset]
    return int(np.argmin(np.abs(np.log(ratios / factor))))


def _finish(figure: Any, panels: list[list[Any]], label: str, path: Path) -> None:
    for row in panels:
        row[0].set_ylabel(label)
        for axes in row:
            axes.grid(alpha=0.25)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), fontsize="small")
    figure.savefig(path, dpi=130)
