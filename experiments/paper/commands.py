# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.paper`: Table 1, figures 1 to 4, and all of them on one page."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.common.options import DataDir, check_counts, check_out, load_all, one_name, split_names
from experiments.common.progress import run_all
from experiments.paper import protocol
from experiments.paper.outputs import print_verdicts, render_table1, write_output
from experiments.paper.page import Contents, write_page
from experiments.paper.plans import figure1_plan, figure4_plan, sweep_plan, table1_plan
from experiments.paper.sweep import COLUMNS, Sweep, SweepExperiment
from experiments.paper.table1 import Cell
from quell.cli.common import Seed, output_console
from quell.paper import NAMES, SUBSETS, VARIATES

Out = Annotated[Path, typer.Option(help="Folder for pictures, reports and the results behind them.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Within a minute: the first data set, few columns, runs and steps.")
]
Datasets = Annotated[str, typer.Option(help="Names, separated by commas.")]
Runs = Annotated[int, typer.Option(help="Independent runs for each learning rate.")]

OUT = Path("reproduction")
ALL_DATASETS, ALL_COLUMNS = ",".join(NAMES), ",".join(COLUMNS)
PAPER_DATASETS = "ionosphere,australian,sonar"

app = typer.Typer(help="Reproduce the paper's table and figures.", no_args_is_help=True, pretty_exceptions_enable=False)


@app.command()
def table1(
    datasets: Datasets = ALL_DATASETS,
    variates: Annotated[str, typer.Option(help="Ensembles, separated by commas.")] = ALL_COLUMNS,
    runs: Annotated[int, typer.Option(help="Independent runs per cell.")] = 50,
    steps: Annotated[int, typer.Option(help="Iterations per run.")] = protocol.STEPS,
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
    console.print(render_table1(cells))
    print_verdicts(console, verdicts)
    console.print(f"{seconds:.0f} s; written to {out / 'table1.json'} and {out / 'table1.png'}")


@app.command()
def figure1(
    dataset: Annotated[str, typer.Option(help="Name of the data set.")] = "australian",
    steps: Annotated[int, typer.Option(help="Length of the sequence of weights.")] = 300,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """Squared norm and variance of the gradient along one sequence of weights, for the growing ensembles."""
    check_counts(steps=steps)
    (data,) = load_all([one_name("data set", dataset, NAMES)], data_dir)
    check_out(out)
    (result,) = run_all([figure1_plan(data, steps=steps, seed=seed, quick=quick)], out)
    _finish("figure1", result, out)


@app.command()
def figure2(
    datasets: Datasets = PAPER_DATASETS,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO against the iteration at two learning rates, and at the best one for each iteration."""
    _finish("figure2", _run_sweeps(datasets, runs, data_dir, out, seed, quick=quick), out)


@app.command()
def figure3(
    datasets: Datasets = PAPER_DATASETS,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO after 500 iterations against the learning rate."""
    _finish("figure3", _run_sweeps(datasets, runs, data_dir, out, seed, quick=quick), out)


@app.command()
def figure4(
    dataset: Annotated[str, typer.Option(help="Name of the data set beside the artificial one.")] = "ionosphere",
    repetitions: Annotated[int, typer.Option(help="Repetitions for each number of evaluations.", min=2)] = 200,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The squared norm of the gradient against the prior's strength v0, for several numbers of evaluations M."""
    (data,) = load_all([one_name("data set", dataset, NAMES)], data_dir)
    check_out(out)
    _finish("figure4", run_all(figure4_plan(data, repetitions=repetitions, seed=seed, quick=quick), out), out)


@app.command("all")
def everything(
    runs: Annotated[int, typer.Option(help="Independent runs per cell of the table.")] = 50,
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
    table = table1_plan(list(loaded.values()), COLUMNS, runs=runs, steps=protocol.STEPS, seed=seed, quick=quick)
    sweep = sweep_plan(halves, runs=sweep_runs, seed=seed, quick=quick)
    along = figure1_plan(first, steps=300, seed=seed, quick=quick)
    sensitivity = figure4_plan(loaded["ionosphere"], repetitions=200, seed=seed, quick=quick)
    results = run_all([*table, *sweep, along, *sensitivity], out)

    cells = [Cell.from_sweep(result) for result in results[: len(table)]]
    sweeps = results[len(table) : len(table) + len(sweep)]
    norms, *panels = results[len(table) + len(sweep) :]
    seconds = time.perf_counter() - began
    verdicts = [
        *write_output("table1", cells, out, settings=table1_settings(table[0])),
        *write_output("figure1", norms, out),
        *write_output("figure2", sweeps, out),
        *write_output("figure3", sweeps, out),
        *write_output("figure4", panels, out),
    ]
    work = sum(result.seconds for result in results)
    write_page(out / "index.html", Contents(cells, sweeps, norms, panels, verdicts, seed, work, quick))
    console = output_console()
    console.print(render_table1(cells))
    print_verdicts(console, verdicts)
    console.print(f"{seconds:.0f} s; written to {out / 'index.html'}, with the pictures and reports beside it")


def table1_settings(experiment: SweepExperiment) -> dict[str, Any]:
    """Entries of `table1.json` beside the rows."""
    return {
        "runs": experiment.num_runs,
        "steps": experiment.num_steps,
        "seed": experiment.seed,
        "batch_size": protocol.BATCH_SIZE,
        "momentum": protocol.MOMENTUM,
        "decay": protocol.DECAY,
        "v0": protocol.V0,
    }


def _run_sweeps(datasets: str, runs: int, data_dir: Path | None, out: Path, seed: int, *, quick: bool) -> list[Sweep]:
    check_counts(runs=runs)
    loaded = load_all(split_names("data set", datasets, NAMES), data_dir)
    check_out(out)
    return run_all(sweep_plan(loaded, runs=runs, seed=seed, quick=quick), out)


def _finish(name: str, content: Any, out: Path) -> None:
    """Write report and pictures of a figure, and print the verdicts."""
    console = output_console()
    print_verdicts(console, write_output(name, content, out))
    console.print(f"Written to {out / name}.png and {out / name}.json")
