# SPDX-License-Identifier: Apache-2.0
"""Outputs of a reproduction: a picture and a JSON report for each table and figure, and tables for the terminal."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.paper.comparison import FAILS, HOLDS, UNDECIDED, Verdict
from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import Panel
from experiments.paper.plots import DRAW
from experiments.paper.sweep import LEARNING_RATES, Sweep
from experiments.paper.table1 import Cell
from experiments.paper.verdicts import (
    figure1_verdicts,
    figure2_verdicts,
    figure3_verdicts,
    figure4_verdicts,
    table1_verdicts,
)
from quell.core.atomic import write_atomically

_COLOURS = {HOLDS: "green", FAILS: "red", UNDECIDED: "yellow"}


def write_output(name: str, content: Any, out: Path, **extra: Any) -> list[Verdict]:
    """Write the report and the pictures of one table or figure.

    Args:
        name: `table1` or `figure1` to `figure4`.
        content: results of its experiments.
        out: folder.
        **extra: entries of the report beside those of the content.

    Returns:
        The verdicts on its claims, which are part of the report.
    """
    claims, report = _KINDS[name]
    verdicts = claims(content)
    entries = {**report(content), **extra, "verdicts": [verdict.as_json() for verdict in verdicts]}
    text = json.dumps(entries, indent=2) + "\n"
    write_atomically(out / f"{name}.json", lambda file: file.write(text.encode()))
    DRAW[name](content, out / f"{name}.png")
    return verdicts


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Show which claims hold."""
    if not verdicts:
        console.print("None of the paper's claims can be tested with these columns.")
        return
    table = Table(title="The paper's claims, tested on these runs at the 1% level")
    for header in ("", "claim", "verdict", "evidence"):
        table.add_column(header, overflow="fold")
    for verdict in verdicts:
        outcome = f"[{_COLOURS[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(verdict.source, verdict.claim, outcome, verdict.evidence)
    console.print(table)


def render_table1(cells: Sequence[Cell]) -> Table:
    """Table 1 for a terminal."""
    num_runs = cells[0].curves.shape[0]
    title = f"ELBO after {cells[0].steps} iterations, {num_runs} runs: mean ± standard error (the paper's figure)"
    table = Table(title=title)
    table.add_column("data set", overflow="fold")
    table.add_column("optimum", justify="right", overflow="fold")
    columns = list(dict.fromkeys(cell.variates for cell in cells))
    for column in columns:
        table.add_column("−" if column == "none" else column, justify="right", overflow="fold")
    for name in dict.fromkeys(cell.dataset for cell in cells):
        row = {cell.variates: cell for cell in cells if cell.dataset == name}
        texts = [_cell_text(row[column]) for column in columns]
        optimum = next(iter(row.values())).optimum
        table.add_row(f"{name} ({LEARNING_RATES[name]:g})", f"{optimum:.1f}", *texts)
    return table


def _cell_text(cell: Cell) -> str:
    paper = f"\n({cell.paper:.1f})" if cell.paper is not None else ""
    lost = cell.curves.shape[0] - cell.final.size
    note = f"\n{lost} not finite" if lost else ""
    error = f" ± {cell.stderr:.1f}" if cell.final.size > 1 else ""
    return f"{cell.mean:.1f}{error}{paper}{note}"


def _table_report(cells: Sequence[Cell]) -> dict[str, Any]:
    """The rows, and the seconds of all cells together."""
    return {"rows": [cell.as_row() for cell in cells], "seconds": round(sum(cell.seconds for cell in cells), 3)}


def _sweep_report(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    return {"sweeps": [sweep.as_json() for sweep in sweeps]}


def _panel_report(panels: Sequence[Panel]) -> dict[str, Any]:
    return {"panels": [panel.as_json() for panel in panels]}


_KINDS: dict[str, tuple[Callable[[Any], list[Verdict]], Callable[[Any], dict[str, Any]]]] = {
    "table1": (table1_verdicts, _table_report),
    "figure1": (figure1_verdicts, Figure1.as_json),
    "figure2": (figure2_verdicts, _sweep_report),
    "figure3": (figure3_verdicts, _sweep_report),
    "figure4": (figure4_verdicts, _panel_report),
}
