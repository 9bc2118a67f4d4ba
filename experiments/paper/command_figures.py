# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce figure1` to `figure4`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.options import (
    OUT,
    DataDir,
    Datasets,
    Out,
    Quick,
    check_counts,
    check_out,
    load_all,
    one_name,
    run_all,
    split_names,
)
from experiments.outputs import print_verdicts, write_output
from experiments.paper.figure1 import Figure1Experiment
from experiments.paper.figure4 import PanelExperiment, figure4_experiments
from experiments.paper.sweep import Sweep, SweepExperiment, sweep_experiments
from quell.cli.common import Seed, output_console
from quell.paper import NAMES, Dataset

Runs = Annotated[int, typer.Option(help="Independent runs for each learning rate.")]

THREE = "ionosphere,australian,sonar"


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
    data = load_all(one_name("data set", dataset, NAMES), data_dir)[0]
    check_out(out)
    results = run_all([figure1_plan(data, steps=steps, seed=seed, quick=quick)], out)
    _show("figure1", results[0], out)


def figure2(
    datasets: Datasets = THREE,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO against the iteration at two learning rates, and at the best one for each iteration."""
    sweeps = _sweep(datasets, runs, data_dir, out, seed, quick=quick)
    _show("figure2", sweeps, out)


def figure3(
    datasets: Datasets = THREE,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO after 500 iterations against the learning rate."""
    sweeps = _sweep(datasets, runs, data_dir, out, seed, quick=quick)
    _show("figure3", sweeps, out)


def figure4(
    dataset: Annotated[str, typer.Option(help="Name of the data set beside the artificial one.")] = "ionosphere",
    repetitions: Annotated[int, typer.Option(help="Repetitions for each number of evaluations.", min=2)] = 200,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The squared norm of the gradient against the prior's strength v0, for several numbers of evaluations M."""
    data = load_all(one_name("data set", dataset, NAMES), data_dir)[0]
    check_out(out)
    panels = run_all(figure4_plan(data, repetitions=repetitions, seed=seed, quick=quick), out)
    _show("figure4", panels, out)


def figure1_plan(data: Dataset, *, steps: int, seed: int, quick: bool) -> Figure1Experiment:
    """Figure 1's experiment, or a small version of it."""
    if quick:
        return Figure1Experiment(data, num_steps=min(steps, 60), num_evaluations=500, seed=seed)
    return Figure1Experiment(data, num_steps=steps, seed=seed)


def sweep_plan(datasets: list[Dataset], *, runs: int, seed: int, quick: bool) -> list[SweepExperiment]:
    """The sweep behind figures 2 and 3, or a small version of it."""
    if quick:
        return sweep_experiments(datasets[:1], ("none", "S7"), num_runs=2, num_steps=100, seed=seed)
    return sweep_experiments(datasets, num_runs=runs, seed=seed)


def figure4_plan(data: Dataset, *, repetitions: int, seed: int, quick: bool) -> list[PanelExperiment]:
    """Figure 4's experiments, or small versions of them."""
    return figure4_experiments(data, repetitions=min(repetitions, 20) if quick else repetitions, seed=seed)


def _sweep(datasets: str, runs: int, data_dir: Path | None, out: Path, seed: int, *, quick: bool) -> list[Sweep]:
    check_counts(runs=runs)
    loaded = load_all(split_names("data set", datasets, NAMES), data_dir)
    check_out(out)
    return run_all(sweep_plan(loaded, runs=runs, seed=seed, quick=quick), out)


def _show(name: str, content: Any, out: Path) -> None:
    console = output_console()
    print_verdicts(console, write_output(name, content, out))
    console.print(f"Written to {out / name}.png and {out / name}.json")


COMMANDS = (figure1, figure2, figure3, figure4)
