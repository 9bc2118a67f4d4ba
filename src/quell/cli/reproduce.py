# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce`: the paper's experiments."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from quell.checks import check_count, check_name
from quell.paper import NAMES, SUBSETS, VARIATES, Dataset, DatasetUnavailable, load, protocol
from quell.paper.table1 import COLUMNS, LEARNING_RATES, Cell, run_table1
from quell.paper.workers import available_cores

app = typer.Typer(help="Reproduce the experiments of the paper.", no_args_is_help=True)
console = Console()

MOST_WORKERS = 3
"""Each needs up to a gigabyte."""


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
    seed: Annotated[int, typer.Option(help="Seed of all runs.")] = 0,
) -> None:
    """The ELBO after 500 iterations, by data set and ensemble, beside the paper's figures."""
    began = time.perf_counter()
    columns = _names("ensemble", variates, [*SUBSETS, *VARIATES])
    names = _names("data set", datasets, NAMES)
    try:
        check_count("runs", runs)
        check_count("steps", steps)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    loaded = _load(names, data_dir)
    out.mkdir(parents=True, exist_ok=True)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compiling", total=len(loaded) * len(columns))

        def on_cell(cell: Cell) -> None:
            progress.update(task, advance=1, description=f"{cell.dataset} {cell.variates}")

        cells = run_table1(
            loaded,
            columns,
            num_runs=runs,
            num_steps=steps,
            seed=seed,
            num_workers=min(available_cores(), MOST_WORKERS),
            on_cell=on_cell,
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
    report = {"rows": [cell.as_row() for cell in cells], "seconds": round(seconds, 3), "settings": settings}
    (out / "table1.json").write_text(json.dumps(report, indent=2) + "\n")
    _draw(cells, out / "table1.png")
    console.print(_render(cells, columns))
    console.print(f"{seconds:.0f} s; written to {out / 'table1.json'} and {out / 'table1.png'}")


def _names(kind: str, text: str, valid: list[str] | tuple[str, ...]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        for name in names:
            check_name(kind, name, valid)
        if not names:
            check_name(kind, text, valid)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return list(dict.fromkeys(names))


def _load(names: list[str], data_dir: Path | None) -> list[Dataset]:
    """Load what is there; say in one line what was left out."""
    loaded = []
    for name in names:
        try:
            loaded.append(load(name, data_dir=data_dir))
        except DatasetUnavailable as error:
            Console(stderr=True).print(f"[yellow]Left out {name}:[/yellow] {escape(str(error))}", soft_wrap=True)
    if not loaded:
        raise typer.Exit(code=1)
    return loaded


def _draw(cells: list[Cell], path: Path) -> None:
    from quell.paper.plots import draw_table1

    draw_table1(cells, path)


def _render(cells: list[Cell], columns: list[str]) -> Table:
    num_runs = cells[0].curves.shape[0]
    table = Table(
        title=f"ELBO after {cells[0].steps} iterations, {num_runs} runs: mean ± standard error (the paper's figure)"
    )
    table.add_column("data set")
    table.add_column("optimum", justify="right")
    for column in columns:
        table.add_column("−" if column == "none" else column, justify="right")
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
