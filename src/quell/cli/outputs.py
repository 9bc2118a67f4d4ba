# SPDX-License-Identifier: Apache-2.0
"""What a reproduction leaves in its folder: a picture and a report for each table and figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quell.atomic import write_atomically
from quell.paper.figure1 import Figure1
from quell.paper.figure4 import Panel
from quell.paper.sweep import Sweep
from quell.paper.table1 import Cell
from quell.paper.verdicts import (
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

_COLOURS = {HOLDS: "green", FAILS: "red", UNDECIDED: "yellow"}


def write_table1(cells: Sequence[Cell], out: Path, settings: dict[str, Any]) -> list[Verdict]:
    """Write `table1.json` (with the seconds of all cells together) and `table1.png`."""
    from quell.paper.plots import draw_table1

    verdicts = table1_verdicts(cells)
    rows = [cell.as_row() for cell in cells]
    _write(
        out / "table1.json",
        {"rows": rows, "seconds": round(sum(cell.seconds for cell in cells), 3), "settings": settings},
        verdicts,
    )
    draw_table1(cells, out / "table1.png")
    return verdicts


def write_figure1(result: Figure1, out: Path) -> list[Verdict]:
    """Write `figure1.json` and `figure1.png`."""
    from quell.paper.plots import draw_figure1

    verdicts = figure1_verdicts(result)
    _write(out / "figure1.json", result.as_json(), verdicts)
    draw_figure1(result, out / "figure1.png")
    return verdicts


def write_figure2(sweeps: Sequence[Sweep], out: Path) -> list[Verdict]:
    """Write `figure2.json` and `figure2.png`."""
    from quell.paper.plots import draw_figure2

    verdicts = figure2_verdicts(sweeps)
    _write(out / "figure2.json", {"sweeps": [sweep.as_json() for sweep in sweeps]}, verdicts)
    draw_figure2(sweeps, out / "figure2.png")
    return verdicts


def write_figure3(sweeps: Sequence[Sweep], out: Path) -> list[Verdict]:
    """Write `figure3.json` and `figure3.png`."""
    from quell.paper.plots import draw_figure3

    verdicts = figure3_verdicts(sweeps)
    _write(out / "figure3.json", {"sweeps": [sweep.as_json() for sweep in sweeps]}, verdicts)
    draw_figure3(sweeps, out / "figure3.png")
    return verdicts


def write_figure4(panels: Sequence[Panel], out: Path) -> list[Verdict]:
    """Write `figure4.json` and `figure4.png`."""
    from quell.paper.plots import draw_figure4

    verdicts = figure4_verdicts(panels)
    _write(out / "figure4.json", {"panels": [panel.as_json() for panel in panels]}, verdicts)
    draw_figure4(panels, out / "figure4.png")
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


def _write(path: Path, content: dict[str, Any], verdicts: Sequence[Verdict]) -> None:
    report = {**content, "verdicts": [verdict.as_json() for verdict in verdicts]}
    write_atomically(path, lambda file: file.write((json.dumps(report, indent=2) + "\n").encode()))
