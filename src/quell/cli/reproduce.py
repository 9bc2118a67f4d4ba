# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce`: the paper's experiments."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from quell.cli.common import (
    check_counts,
    check_out,
    load_all,
    num_workers,
    output_console,
    progress,
    split_names,
    write_json,
)
from quell.cli.figures import COMMANDS
from quell.paper import NAMES, SUBSETS, VARIATES, protocol
from quell.paper.sweep import COLUMNS, LEARNING_RATES
from quell.paper.table1 import Cell, run_table1

app = typer.Typer(help="Reproduce the experiments of the paper.", no_args_is_help=True)


for _command in COMMANDS:
    app.command()(_command)


@app.callback()
def root() -> None:
    """Reproduce the experiments of the paper."""


@app.command()
def table1(
    datasets: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(NAMES),
    variates: Annotated[str, typer.Option(help="Ensembles, separated by commas.")] = ",".join(COLUMNS),
    runs: Annotated[int, typer.Option(help="Independent runs a cell.")] = 50,
    steps: Annotated[int, typer.Option(help="Iterations a run.")] = protocol.STEPS,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with australian.csv.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for table1.json and table1.png.")] = Path("reproduction"),
    seed: Annotated[int, typer.Option(help="Seed of all runs.", min=0, max=2**31 - 1)] = 0,
) -> None:
    """The ELBO after 500 iterations, by data set and ensemble, beside the paper's figures."""
    from quell.paper.plots import draw_table1

    began = time.perf_counter()
    columns = split_names("ensemble", variates, [*SUBSETS, *VARIATES])
    names = split_names("data set", datasets, NAMES)
    check_counts(runs=runs, steps=steps)
    loaded = load_all(names, data_dir)
    check_out(out)
    with progress(len(loaded) * len(columns)) as advance:
        cells = run_table1(
            loaded,
            columns,
            num_runs=runs,
            num_steps=steps,
            seed=seed,
            num_workers=num_workers(),
            on_cell=lambda cell: advance(f"{cell.dataset} {cell.variates}"),
        )
    seconds = time.perf_counter() - began
    settings = {
        "runs": runs,
        "steps": steps,
        "seed": seed,
        "batch_size": protocol.BATCH_SIZE,
        "momentum": protocol.MOMENTUM,
        "decay": protocol.DECAY,
        "v0": protocol.V0,
    }
    rows = [cell.as_row() for cell in cells]
    write_json(out / "table1.json", {"rows": rows, "seconds": round(seconds, 3), "settings": settings})
    draw_table1(cells, out / "table1.png")
    console = output_console()
    console.print(_render(cells, columns))
    console.print(f"{seconds:.0f} s; written to {out / 'table1.json'} and {out / 'table1.png'}")


def _render(cells: list[Cell], columns: list[str]) -> Table:
    num_runs = cells[0].curves.shape[0]
    title = f"ELBO after {cells[0].steps} iterations, {num_runs} runs: mean ± standard error (the paper's figure)"
    table = Table(title=title)
    table.add_column("data set", overflow="fold")
    table.add_column("optimum", justify="right", overflow="fold")
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
