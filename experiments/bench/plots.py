# SPDX-License-Identifier: Apache-2.0
"""The benchmark's figure: the gap to the optimum against seconds."""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.bench.clock import TARGETS
from experiments.common.plots import PALETTE, add_legend, make_panels, save_figure

_COLUMNS = 3
_GAPS = (0.03, 3e4)
_OURS = {"quell auto": 2.8, "quell fixed": 1.2, "quell ensemble": 1.2, "quell base": 1.2}
"""Our methods that are drawn, with the widths of their lines; the table has all."""


def draw_gaps(content: dict[str, Any], path: Path) -> None:
    """Draw the least gap so far against the seconds, one panel per problem: the peers, and our main methods.

    Args:
        content: of `bench.json`.
        path: of the PNG.
    """
    save_figure(lambda: _figure(content["curves"]), path)


def _figure(curves: list[dict[str, Any]]) -> Any:
    curves = [curve for curve in curves if curve["method"] in _OURS or not curve["method"].startswith("quell")]
    problems = list(dict.fromkeys(curve["problem"] for curve in curves))
    styles = _styles(list(dict.fromkeys(curve["method"] for curve in curves)))
    columns = min(_COLUMNS, len(problems))
    rows = -(-len(problems) // columns)
    figure, grid = make_panels(rows, columns)
    panels = [axes for row in grid for axes in row]
    for axes, problem in zip(panels, problems, strict=False):
        for curve in curves:
            if curve["problem"] == problem:
                gaps = np.clip(np.minimum.accumulate(curve["gaps"]), *_GAPS)
                axes.plot(curve["seconds"], gaps, **styles[curve["method"]])
        for nats in TARGETS:
            axes.axhline(nats, color="#888888", linewidth=1.0, linestyle=":")
        axes.set(title=problem, xscale="log", yscale="log", xlabel="seconds after compilation")
        axes.grid(alpha=0.25)
    for axes in panels[len(problems) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("nats below the optimum")
    add_legend(figure, _handles(styles), columns=3)
    return figure


def _styles(methods: list[str]) -> dict[str, dict[str, Any]]:
    """Ours as full lines, the automatic choice a thick one, peers dashed; each with a colour of its own."""
    ordered = [*(name for name in _OURS if name in methods), *(name for name in methods if name not in _OURS)]
    styles = {}
    for number, name in enumerate(ordered):
        line = {"linewidth": _OURS[name]} if name in _OURS else {"linewidth": 1.6, "linestyle": "--", "marker": "."}
        styles[name] = {"color": PALETTE[number % len(PALETTE)], "label": name, **line}
    return styles


def _handles(styles: dict[str, dict[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    return [Line2D([], [], **style) for style in styles.values()]
