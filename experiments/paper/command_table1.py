# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce table1`."""

import time
from typing import Annotated, Any

import typer
from rich.table import Table

from experiments.options import (
    OUT,
    DataDir,
    Datasets,
    Out,
    Quick,
    check_counts,
    check_out,
    load_all,
    run_all,
    split_names,
)
from experiments.outputs import print_verdicts, write_output
from experiments.paper import protocol
from experiments.paper.sweep import COLUMNS, LEARNING_RATES, SweepExperiment
from experiments.paper.table1 import Cell, table1_experiments
from quell.cli.common import Seed, output_console
from quell.paper import NAMES, SUBSETS, VARIATES, Dataset

ALL_DATASETS, ALL_COLUMNS = ",".join(NAMES), ",".join(COLUMNS)


def table1(
    datasets: Datasets = ALL_DATASETS,
    variates: Annotated[str, typer.Option(help="Ensembles, separated by commas.")] = ALL_COLUMNS,
    runs: Annotated[int, typer.Option(help="Independent runs a cell.")] = 50,
    steps: Annotated[int, typer.Option(help="Iterations a run.")] = protocol.STEPS,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO after 500 iterations, by data set and ensemble, beside the paper's figures."""
    began = time.perf_counter()
    columns = split_names("ensemble", variates, [*SUBSETS, *VARIATES])
    names = split_names("data set", datasets, NAMES)
    check_counts(runs=runs, steps=steps)
    loaded = load_all(names, data_dir)
    check_out(out)
    plan = table1_plan(loaded, columns, runs=runs, steps=steps, seed=seed, quick=quick)
    cells = [Cell.from_sweep(sweep) for sweep in run_all(plan, out)]
    seconds = time.perf_counter() - began
    verdicts = write_output("table1", cells, out, settings=table1_settings(plan[0]))
    console = output_console()
    console.print(render(cells))
    print_verdicts(console, verdicts)
    console.print(f"{seconds:.0f} s; written to {out / 'table1.json'} and {out / 'table1.png'}")


def table1_plan(
    datasets: list[Dataset], columns: list[str], *, runs: int, steps: int, seed: int, quick: bool
) -> list[SweepExperiment]:
    """The table's experiments, or a small version of them."""
    if quick:
        datasets, runs = datasets[:1], min(runs, 4)
        columns = [column for column in columns if column in {"none", "S7"}] or columns[:1]
    return table1_experiments(datasets, columns, num_runs=runs, num_steps=steps, seed=seed)


def table1_settings(experiment: SweepExperiment) -> dict[str, Any]:
    """What goes into the report beside the rows."""
    return {
        "runs": experiment.num_runs,
        "steps": experiment.num_steps,
        "seed": experiment.seed,
        "batch_size": protocol.BATCH_SIZE,
        "momentum": protocol.MOMENTUM,
        "decay": protocol.DECAY,
        "v0": protocol.V0,
    }


def render(cells: list[Cell]) -> Table:
    """The table for a terminal."""
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
