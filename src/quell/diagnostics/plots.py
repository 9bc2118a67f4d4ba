# SPDX-License-Identifier: Apache-2.0
"""Figures of a fit, each legible on a phone, in a light or a dark theme."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from quell.diagnostics.contribution import Contribution, Contributions
from quell.diagnostics.theme import PALETTE, add_legend, finish, panels, short_name
from quell.diagnostics.variance import GradientVariance
from quell.fit.history import History

_MOST_POINTS = 150
_MOST_LINES, _MOST_BARS = 6, 14
_BASE, _COMBINED, _REST = PALETTE[6], PALETTE[0], PALETTE[6]
_STYLES = ("-", "--", ":", "-.")


def plot_elbo(history: History, *, theme: str = "light") -> Any:
    """Draw the noisy ELBO over the steps: median and 80% interval of neighbouring steps.

    Args:
        history: of a fit; skipped steps are not drawn.
        theme: `light` or `dark`.

    Returns:
        A matplotlib figure.
    """
    with panels("ELBO over the steps", theme) as (figure, (axes,)):
        steps, values = _steps(history), history.taken.elbo
        if _is_empty(axes, steps):
            return figure
        x, middle = _binned(steps, values, np.median)
        low, high = (_binned(steps, values, lambda v, q=q: np.quantile(v, q))[1] for q in (0.1, 0.9))
        axes.fill_between(x, low, high, color=PALETTE[1], alpha=0.25, linewidth=0, label="10% to 90%")
        axes.plot(x, middle, color=PALETTE[1], linewidth=1.8, label="median")
        _show_late_half(axes, low, high)
        finish(axes, "step", "ELBO in nats")
        axes.legend(loc="lower right", fontsize="small")
    return figure


def plot_norms(history: History, *, theme: str = "light") -> Any:
    """Draw the squared norms of base and combined gradient over the steps, averaged over neighbouring steps.

    Args:
        history: of a fit; skipped steps are not drawn.
        theme: `light` or `dark`.

    Returns:
        A matplotlib figure.
    """
    with panels("Squared norm of the gradient", theme) as (figure, (axes,)):
        steps, taken = _steps(history), history.taken
        if _is_empty(axes, steps):
            return figure
        lines = [("base gradient", taken.base_sq_norm, _BASE, "--")]
        lines += [("with the variates", taken.combined_sq_norm, _COMBINED, "-")] if taken.weights.shape[1] else []
        for label, values, color, style in lines:
            x, mean = _binned(steps, values, np.mean)
            axes.plot(x, np.where(mean > 0, mean, np.nan), color=color, linestyle=style, linewidth=1.8, label=label)
        axes.set_yscale("log")
        finish(axes, "step", "in the metric of the rule")
        add_legend(figure)
    return figure


def plot_weights(
    history: History, names: Sequence[str], *, shown: Sequence[str] | None = None, theme: str = "light"
) -> Any:
    """Draw each variate's weight over the steps.

    Args:
        history: of a fit; skipped steps are not drawn.
        names: of the variates, in the order of the weights.
        shown: names of those drawn in colour; by default the six with the largest weights at the end.
        theme: `light` or `dark`.

    Returns:
        A matplotlib figure.
    """
    with panels("Weights of the variates", theme, height=3.7) as (figure, (axes,)):
        steps, weights = _steps(history), history.taken.weights
        if _is_empty(axes, steps if names else steps[:0]):
            return figure
        late = np.abs(weights[-max(1, len(steps) // 10) :]).mean(axis=0)
        wanted = [names[k] for k in np.argsort(-late, kind="stable").tolist()] if shown is None else shown
        named = [name for name in wanted if name in names][:_MOST_LINES]
        axes.axhline(0.0, color=_REST, linewidth=0.8)
        for name in [*(name for name in names if name not in named), *named]:
            look: dict[str, Any] = {"color": _REST, "linewidth": 0.7, "alpha": 0.6}
            if name in named:
                k = named.index(name)
                look = {"color": PALETTE[k], "linestyle": _STYLES[k % 4], "linewidth": 1.8, "label": short_name(name)}
            axes.plot(*_binned(steps, weights[:, names.index(name)], np.mean), **look)
        finish(axes, "step", "weight")
        others = len(names) - len(named)
        add_legend(figure, f"{others} other{'s' * (others > 1)} in grey" if others else None)
    return figure


def plot_contributions(found: Contributions, *, theme: str = "light") -> Any:
    """Draw what each variate contributes beside what it costs.

    Args:
        found: at some point of a fit. Of many variates the fourteen that contribute or cost most are drawn.
        theme: `light` or `dark`.

    Returns:
        A matplotlib figure.
    """
    drawn = _worth_drawing(found.variates)
    is_timed = any(np.isfinite(variate.cost) for variate in drawn)
    height = max(2.0, 1.2 + 0.27 * len(drawn))
    with panels("", theme, columns=2 if is_timed else 1, height=height) as (figure, drawn_on):
        if _is_empty(drawn_on[0], drawn, "no variates"):
            return figure
        _draw_growths(drawn_on[0], drawn)
        if is_timed:
            _draw_costs(drawn_on[1], drawn)
    return figure


def _draw_growths(axes: Any, drawn: Sequence[Contribution]) -> None:
    growths = np.array([v.growth.value for v in drawn])
    growths = np.maximum(np.where(np.isfinite(growths), growths, 1.0), 1.0)
    axes.barh(np.arange(len(drawn)), growths - 1.0, left=1.0, color=PALETTE[0])
    axes.set_xscale("log")
    axes.set_xlim(1.0, max(1.5, 1.15 * growths.max()))
    _plain_log_ticks(axes)
    _name_bars(axes, [v.name for v in drawn])
    finish(axes, "times as large", "", title="Variance without it", grid="x")


def _draw_costs(axes: Any, drawn: Sequence[Contribution]) -> None:
    costs = np.array([100 * max(v.cost, 0.0) for v in drawn])
    axes.barh(np.arange(len(drawn)), np.nan_to_num(costs), color=PALETTE[1])
    for place in np.flatnonzero(np.isnan(costs)):
        axes.text(0.0, place, " not measured", va="center", fontsize="x-small", color=_REST)
    axes.set_xlim(0.0, max(10.0, 1.15 * np.nanmax(costs)))
    finish(axes, "% of a step", "", title="Time it takes", grid="x")


def plot_variance(variance: GradientVariance, *, theme: str = "light") -> Any:
    """Draw the variance of the gradient by block of parameters, with and without the variates.

    Args:
        variance: at some point of a fit. Of many blocks the fourteen with the highest variance are drawn.
        theme: `light` or `dark`.

    Returns:
        A matplotlib figure.
    """
    blocks = sorted(variance.blocks, key=lambda block: -np.nan_to_num(block.base.value))[:_MOST_BARS]
    with panels("Variance by block", theme, height=max(2.0, 1.5 + 0.3 * len(blocks))) as (figure, (axes,)):
        values = np.array([[block.base.value, block.combined.value] for block in blocks])
        errors = np.nan_to_num([[block.base.standard_error, block.combined.standard_error] for block in blocks])
        values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
        places = np.arange(len(blocks))
        axes.hlines(places, values.min(axis=1), values.max(axis=1), color=_REST, alpha=0.5, linewidth=3.0)
        for column, (label, color, marker) in enumerate(
            [("base gradient", _BASE, "s"), ("with the variates", _COMBINED, "o")]
        ):
            x, error = values[:, column], np.minimum(errors[:, column], 0.9 * values[:, column])
            axes.errorbar(x, places, xerr=error, fmt=marker, color=color, markersize=7, capsize=3, label=label)
        axes.set_xscale("log")
        axes.set_ylim(-0.6, len(blocks) - 0.4)
        _plain_log_ticks(axes)
        _name_bars(axes, [block.name for block in blocks])
        finish(axes, "for the ELBO per datum", "", grid="x")
        add_legend(figure)
    return figure


def _show_late_half(axes: Any, low: np.ndarray, high: np.ndarray) -> None:
    """Limit the axis to the second half of the steps and as much again below it; the first steps may be far down."""
    low, high = low[np.isfinite(low)], high[np.isfinite(high)]
    if low.size:
        bottom, top = low[low.size // 2 :].min(), high[high.size // 2 :].max()
        room = max(top - bottom, 1e-6 * abs(top), 1e-12)
        axes.set_ylim(max(bottom - 1.2 * room, low.min() - 0.1 * room), top + 0.1 * room)


def _is_empty(axes: Any, content: Sequence[Any] | np.ndarray, text: str = "nothing to draw") -> bool:
    if len(content):
        return False
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    return True


def _steps(history: History) -> np.ndarray:
    """Numbers of the steps that were not skipped."""
    return np.flatnonzero(~history.skipped) + 1


def _binned(
    steps: np.ndarray, values: np.ndarray, reduce: Callable[[np.ndarray], Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Reduce neighbouring steps to one point, from their finite values."""
    edges = np.linspace(0, len(steps), min(len(steps), _MOST_POINTS) + 1).astype(int)
    bins = [slice(start, stop) for start, stop in itertools.pairwise(edges)]
    finite = [values[one][np.isfinite(values[one])] for one in bins]
    reduced = [float(reduce(some)) if some.size else np.nan for some in finite]
    return np.array([steps[one].mean() for one in bins]), np.array(reduced)


def _worth_drawing(variates: Sequence[Contribution]) -> list[Contribution]:
    """Those that contribute or cost most, in the order of the ensemble."""
    if len(variates) <= _MOST_BARS:
        return list(variates)

    def weight(variate: Contribution) -> float:
        return np.nan_to_num(np.log(max(variate.growth.value, 1.0))) + np.nan_to_num(variate.cost)

    chosen = sorted(variates, key=weight, reverse=True)[:_MOST_BARS]
    return [variate for variate in variates if variate in chosen]


def _name_bars(axes: Any, names: Sequence[str]) -> None:
    """Label the bars, the first on top; dollar signs are no formulas."""
    axes.set_yticks(range(len(names)), [short_name(name) for name in names], fontsize="small")
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.invert_yaxis()


def _plain_log_ticks(axes: Any) -> None:
    """Few ticks, written as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    subs = (1.0, 1.5, 2.0, 3.0, 5.0) if high < 8 * low else (1.0, 3.0) if high < 50 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
