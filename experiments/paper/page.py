# SPDX-License-Identifier: Apache-2.0
"""The whole reproduction on one self-contained page."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common import page
from experiments.paper.comparison import FAILS, HOLDS, UNDECIDED, Verdict
from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import Panel
from experiments.paper.sweep import Sweep
from experiments.paper.table1 import Cell
from experiments.paper.verdicts import PAPER_DATASETS

PAPER = "Geffner and Domke, “Using Large Ensembles of Control Variates for Variational Inference”, 2018"
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNDECIDED: "open"}
_TEMPLATE = Path(__file__).with_name("page.html")


@dataclasses.dataclass(frozen=True)
class Contents:
    """Contents of the page; the pictures are in its folder.

    Attributes:
        cells: of Table 1.
        sweeps: of figures 2 and 3.
        figure1: squared norms along one sequence of weights.
        panels: of figure 4.
        verdicts: of all claims.
        seed: of all draws.
        work: seconds of all experiments together.
        quick: whether this is a small version.
    """

    cells: Sequence[Cell]
    sweeps: Sequence[Sweep]
    figure1: Figure1
    panels: Sequence[Panel]
    verdicts: Sequence[Verdict]
    seed: int
    work: float
    quick: bool


def write_page(path: Path, contents: Contents) -> None:
    """Write the page; the five pictures are read from its folder and embedded."""
    page.write_page(_TEMPLATE, path, _variables(contents))


def _variables(contents: Contents) -> dict[str, Any]:
    """Variables of the template."""
    cells, sweep = contents.cells, contents.sweeps[0]
    names = list(dict.fromkeys(cell.dataset for cell in cells))
    counts = {kind: sum(v.outcome == outcome for v in contents.verdicts) for outcome, kind in _CLASSES.items()}
    return {
        "paper": PAPER,
        "classes": _CLASSES,
        "counts": counts,
        "absent": [name for name in PAPER_DATASETS if name not in names],
        "cards": [_card([cell for cell in cells if cell.dataset == name]) for name in names],
        "steps": cells[0].steps,
        "num_runs": cells[0].curves.shape[0],
        "sweep_runs": sweep.curves.shape[1],
        "num_rates": sweep.rates.size,
        "repetitions": contents.panels[0].sq_norm.shape[2],
        **{name: getattr(contents, name) for name in ("figure1", "verdicts", "seed", "work", "quick")},
    }


def _card(cells: Sequence[Cell]) -> dict[str, Any]:
    """A data set's rows; the widest bar is that of the largest distance to the optimum."""
    first = cells[0]
    gaps = [first.optimum - value for cell in cells for value in (cell.mean, cell.paper) if value is not None]
    widest = max([gap for gap in gaps if math.isfinite(gap)], default=1.0)
    return {
        "dataset": first.dataset,
        "learning_rate": first.learning_rate,
        "num_data": first.num_data,
        "optimum": first.optimum,
        "rows": [_row(cell, widest) for cell in cells],
    }


def _row(cell: Cell, widest: float) -> dict[str, Any]:
    def percent(value: float) -> float:
        return 100 * min(1.0, max(0.0, (cell.optimum - value) / widest))

    is_finite = cell.final.size > 0
    return {
        "label": "−" if cell.variates == "none" else cell.variates,
        "mean": cell.mean if is_finite else None,
        "stderr": cell.stderr if cell.final.size > 1 else None,
        "num_lost": cell.curves.shape[0] - cell.final.size,
        "paper": cell.paper,
        "width": percent(cell.mean) if is_finite else 100.0,
        "tick": None if cell.paper is None else percent(cell.paper),
    }
