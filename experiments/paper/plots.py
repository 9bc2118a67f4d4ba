# SPDX-License-Identifier: Apache-2.0
"""The plots of Table 1 and of figures 1 to 4."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.plots import add_legend, in_all_variants, make_panels
from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import SAMPLE_SIZES, STRENGTHS, Panel
from experiments.paper.protocol import V0
from experiments.paper.sweep import COLUMNS, LEARNING_RATES, SHOWN, Sweep, record_interval
from experiments.paper.table1 import Cell

# Okabe and Ito's palette, readable with the common forms of colour blindness; the base gradient has the colour of text.
STYLE: dict[str, dict[str, Any]] = {
    "none": {"linestyle": "-"},
    "S4": {"color": "#E69F00", "linestyle": "-"},
    "S5": {"color": "#56B4E9", "linestyle": "-"},
    "S6": {"color": "#009E73", "linestyle": "--"},
    "S7": {"color": "#D55E00", "linestyle": "-", "linewidth": 2.6},
    "c5": {"color": "#3D8FD1", "linestyle": ":"},
    "c7": {"color": "#CC79A7", "linestyle": ":"},
}
_REFERENCE = "#888888"
_SHADES = ("#E69F00", "#56B4E9", "#009E73", "#D55E00", "#CC79A7")


@in_all_variants
def draw_table1(cells: Sequence[Cell], tall: bool) -> Any:
    """Draw the median ELBO against the iteration, one panel per data set."""
    names = list(dict.fromkeys(cell.dataset for cell in cells))
    figure, panels = make_panels(1, len(names), tall=tall)
    for axes, name in zip(panels[0], names, strict=True):
        mine = [cell for cell in cells if cell.dataset == name]
        curves = [np.median(np.nan_to_num(cell.curves, nan=-np.inf), axis=0) for cell in mine]
        for cell, curve in zip(mine, curves, strict=True):
            _line(axes, np.arange(curve.size) * record_interval(cell.steps), curve, cell.variates)
        _show_optimum(axes, mine[0].optimum, _worth_seeing(curves))
        axes.set_title(f"{name}, learning rate {mine[0].learning_rate:g}")
        axes.set_xlabel("iteration")
    return _finish(figure, panels, "ELBO in nats, median of the runs", tall)


@in_all_variants
def draw_figure1(result: Figure1, tall: bool) -> Any:
    """Draw squared norm and variance of the gradient along the sequence of weights."""
    figure, panels = make_panels(1, 2, tall=tall)
    for axes, values, title in zip(
        panels[0], (result.sq_norm.mean(2), result.variance.mean(2)), ("squared norm", "variance"), strict=True
    ):
        for column, row in zip(COLUMNS, values, strict=True):
            _line(axes, result.steps[1:], row[1:], column)
        axes.set_title(f"{result.dataset}: {title}")
        axes.set_yscale("log")
        axes.set_xlabel("iteration of one sequence of weights")
    return _finish(figure, panels, "gradient of the ELBO per datum", tall)


@in_all_variants
def draw_figure2(sweeps: Sequence[Sweep], tall: bool) -> Any:
    """Draw the ELBO against the iteration at two learning rates and at the best one for each iteration."""
    names = list(dict.fromkeys(sweep.dataset for sweep in sweeps))
    figure, panels = make_panels(len(names), 3, tall=tall)
    for row, name in zip(panels, names, strict=True):
        mine = [sweep for sweep in sweeps if sweep.dataset == name]
        curves = [[*(s.median[_nearest(s, factor)] for factor in SHOWN), s.envelope] for s in mine]
        titles = [f"learning rate {mine[0].rates[_nearest(mine[0], factor)]:g}" for factor in SHOWN]
        for k, (axes, title) in enumerate(zip(row, [*titles, "best rate for each iteration"], strict=True)):
            for sweep, some in zip(mine, curves, strict=True):
                _line(axes, sweep.iterations, some[k], sweep.variates)
            _show_optimum(axes, mine[0].optimum, _worth_seeing([some[k] for some in curves]))
            axes.set_title(f"{name}, {title}")
            axes.set_xlabel("iteration")
    return _finish(figure, panels, "ELBO in nats, median of the runs", tall)


@in_all_variants
def draw_figure3(sweeps: Sequence[Sweep], tall: bool) -> Any:
    """Draw the final ELBO against the learning rate."""
    names = list(dict.fromkeys(sweep.dataset for sweep in sweeps))
    figure, panels = make_panels(1, len(names), tall=tall)
    for axes, name in zip(panels[0], names, strict=True):
        mine = [sweep for sweep in sweeps if sweep.dataset == name]
        for sweep in mine:
            _line(axes, sweep.rates, sweep.median[:, -1], sweep.variates, marker="o", markersize=3.5)
        _show_optimum(axes, mine[0].optimum, [value for sweep in mine for value in sweep.median[:, -1]], 3.0)
        axes.axvline(LEARNING_RATES[name], color=_REFERENCE, linewidth=1.0, linestyle=":", label="rate of Table 1")
        axes.set_xscale("log")
        axes.set_title(name)
        axes.set_xlabel("learning rate")
    return _finish(figure, panels, f"ELBO after {sweeps[0].steps} iterations, median", tall)


@in_all_variants
def draw_figure4(results: Sequence[Panel], tall: bool) -> Any:
    """Draw the expected squared norm against the prior's strength, a line for each number of evaluations."""
    figure, panels = make_panels(1, len(results), tall=tall)
    for axes, panel in zip(panels[0], results, strict=True):
        for size, values, shade in zip(SAMPLE_SIZES, panel.mean, _SHADES, strict=True):
            axes.plot(STRENGTHS, values, label=f"M = {size}", color=shade, linewidth=1.8)
        axes.axhline(panel.base_sq_norm, color=_REFERENCE, linewidth=1.2, linestyle="--", label="base gradient")
        axes.axhline(panel.best_sq_norm, color=_REFERENCE, linewidth=1.2, linestyle="-.", label="best weights")
        axes.axvline(V0, color=_REFERENCE, linewidth=1.0, linestyle=":", label="v0 of the experiments")
        axes.set_xscale("log")
        axes.set_yscale("log")
        age = f"{panel.lag} iterations old" if panel.lag else "of the same weights"
        axes.set_title(f"{panel.dataset}, moments {age}")
        axes.set_xlabel("v0")
    return _finish(figure, panels, "expected squared norm of the gradient", tall)


DRAW: dict[str, Callable[[Any, Path], None]] = {
    "table1": draw_table1,
    "figure1": draw_figure1,
    "figure2": draw_figure2,
    "figure3": draw_figure3,
    "figure4": draw_figure4,
}
"""How each table and figure is drawn, by name."""


def _line(axes: Any, x: Any, y: Any, column: str, **options: Any) -> None:
    import matplotlib

    label = "base gradient" if column == "none" else f"with {column}"
    style = {"color": matplotlib.rcParams["text.color"], "linewidth": 1.8, **STYLE.get(column, {})}
    axes.plot(x, np.where(np.isfinite(y), y, np.nan), label=label, **style, **options)


def _worth_seeing(curves: Sequence[Any]) -> list[float]:
    """The values from a sixth of the way on, which the y-axis should have room for."""
    return [float(value) for curve in curves for value in curve[len(curve) // 6 :]]


def _show_optimum(axes: Any, best: float, values: Sequence[float], lowest: float = 4.5) -> None:
    """Mark the optimum, and cut off what lies below a multiple of it, as the paper does."""
    axes.axhline(best, color=_REFERENCE, linewidth=1.2, linestyle="--", label="optimum")
    limit = best - (lowest - 1.0) * abs(best)
    worst = min((value for value in values if np.isfinite(value) and value >= limit), default=limit)
    room = max(best - worst, 1e-3 * abs(best))
    axes.set_ylim(worst - 0.15 * room, best + 0.06 * room)


def _nearest(sweep: Sweep, factor: float) -> int:
    """The learning rate that is nearest to a multiple of the data set's own."""
    ratios = sweep.rates / LEARNING_RATES[sweep.dataset]
    return int(np.argmin(np.abs(np.log(ratios / factor))))


def _finish(figure: Any, panels: list[list[Any]], label: str, tall: bool) -> Any:
    for row in panels:
        for k, axes in enumerate(row):
            axes.grid(alpha=0.25)
            if k == 0 or tall:
                axes.set_ylabel(label)
    handles, _ = panels[0][0].get_legend_handles_labels()
    add_legend(figure, handles, tall=tall)
    return figure
