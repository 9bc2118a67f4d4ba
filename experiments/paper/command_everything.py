# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce all`."""

import time
from typing import Annotated

import typer

from experiments.options import OUT, DataDir, Out, Quick, check_counts, check_out, load_all, run_all
from experiments.outputs import print_verdicts, write_output
from experiments.paper import protocol
from experiments.paper.command_figures import figure1_plan, figure4_plan, sweep_plan
from experiments.paper.command_table1 import render, table1_plan, table1_settings
from experiments.paper.page import Contents, write_page
from experiments.paper.sweep import COLUMNS
from experiments.paper.table1 import Cell
from quell.cli.common import Seed, output_console
from quell.paper import NAMES


def everything(
    runs: Annotated[int, typer.Option(help="Independent runs a cell of the table.")] = 50,
    sweep_runs: Annotated[int, typer.Option(help="Independent runs for each learning rate.")] = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """Table 1 and figures 1 to 4, and one page that shows them: `index.html`."""
    began = time.perf_counter()
    check_counts(runs=runs, sweep_runs=sweep_runs)
    loaded = {data.name: data for data in load_all(["ionosphere"] if quick else NAMES, data_dir)}
    check_out(out)
    halves = [data for name, data in loaded.items() if name != "ionosphere-full"]
    first = loaded.get("australian", loaded["ionosphere"])
    table = table1_plan(list(loaded.values()), list(COLUMNS), runs=runs, steps=protocol.STEPS, seed=seed, quick=quick)
    sweep = sweep_plan(halves, runs=sweep_runs, seed=seed, quick=quick)
    figure1 = figure1_plan(first, steps=300, seed=seed, quick=quick)
    figure4 = figure4_plan(loaded["ionosphere"], repetitions=200, seed=seed, quick=quick)
    results = run_all([*table, *sweep, figure1, *figure4], out)

    cells = [Cell.from_sweep(result) for result in results[: len(table)]]
    sweeps, rest = results[len(table) : len(table) + len(sweep)], results[len(table) + len(sweep) :]
    seconds = time.perf_counter() - began
    verdicts = [
        *write_output("table1", cells, out, settings=table1_settings(table[0])),
        *write_output("figure1", rest[0], out),
        *write_output("figure2", sweeps, out),
        *write_output("figure3", sweeps, out),
        *write_output("figure4", rest[1:], out),
    ]
    work = sum(result.seconds for result in results)
    write_page(out / "index.html", Contents(cells, sweeps, rest[0], rest[1:], verdicts, seed, work, quick))
    console = output_console()
    console.print(render(cells))
    print_verdicts(console, verdicts)
    console.print(f"{seconds:.0f} s; written to {out / 'index.html'}, with the pictures and reports beside it")
