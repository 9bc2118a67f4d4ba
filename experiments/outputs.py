# SPDX-License-Identifier: Apache-2.0
"""What a reproduction leaves in its folder: a picture and a report for each table and figure."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import Panel
from experiments.paper.sweep import Sweep
from experiments.paper.table1 import Cell
from experiments.paper.verdicts import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Verdict,
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
        content: what its experiments gave.
        out: folder.
        **extra: entries of the report beside those of the content.

    Returns:
        The verdicts on its claims, which are part of the report.
    """
    from experiments.paper.plots import DRAW

    judge, report = _KINDS[name]
    verdicts = judge(content)
    entries = {**report(content), **extra, "verdicts": [verdict.as_json() for verdict in verdicts]}
    text = json.dumps(entries, indent=2) + "\n"
    write_atomically(out / f"{name}.json", lambda file: file.write(text.encode()))
    DRAW[name](content, out / f"{name}.png")
    return verdicts


def print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Show which claims hold."""
    if not verdicts:
        console.print("None of the paper's claims can be judged from these columns.")
        return
    table = Table(title="The paper's claims, judged from these runs at the 1% level")
    for header in ("", "claim", "verdict", "evidence"):
        table.add_column(header, overflow="fold")
    for verdict in verdicts:
        outcome = f"[{_COLOURS[verdict.outcome]}]{verdict.outcome}[/]"
        table.add_row(verdict.source, verdict.claim, outcome, verdict.evidence)
    console.print(table)


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
