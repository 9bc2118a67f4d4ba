# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce figure1` to `figure4`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

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
from quell.paper import NAMES, protocol
from quell.paper.figure1 import run_figure1
from quell.paper.figure4 import LAG, Panel, artificial_dataset, run_panel
from quell.paper.sweep import COLUMNS, Sweep, run_sweep

DataDir = Annotated[Path | None, typer.Option(help="Folder with australian.csv.")]
Out = Annotated[Path, typer.Option(help="Folder for the PNG and the JSON behind it.")]
Seed = Annotated[int, typer.Option(help="Seed of all draws.", min=0, max=2**31 - 1)]
Quick = Annotated[bool, typer.Option("--quick", help="A small version that ends within a minute.")]
Datasets = Annotated[str, typer.Option(help="Names, separated by commas.")]
Runs = Annotated[int, typer.Option(help="Independent runs for each learning rate.")]

OUT = Path("reproduction")
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
    from quell.paper.plots import draw_figure1

    check_counts(steps=steps)
    data = load_all(split_names("data set", dataset, NAMES)[:1], data_dir)[0]
    check_out(out)
    options = {"num_steps": 60, "num_evaluations": 500} if quick else {"num_steps": steps}
    with progress(1) as advance:
        result = run_figure1(data, seed=seed, **options)
        advance(data.name)
    write_json(out / "figure1.json", result.as_json())
    draw_figure1(result, out / "figure1.png")
    ratio = result.variance("none")[-1] / result.variance("S7")[-1]
    output_console().print(
        f"At the last of these weights the seven variates leave 1/{ratio:.0f} of the base gradient's variance; "
        f"written to {out / 'figure1.png'}"
    )


def figure2(
    datasets: Datasets = THREE,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO against the iteration at two learning rates, and at the best one for each iteration."""
    from quell.paper.plots import draw_figure2

    sweeps = _sweep(datasets, runs, data_dir, out, seed, quick=quick)
    _finish(sweeps, out, "figure2", draw_figure2)


def figure3(
    datasets: Datasets = THREE,
    runs: Runs = 10,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The ELBO after 500 iterations against the learning rate."""
    from quell.paper.plots import draw_figure3

    sweeps = _sweep(datasets, runs, data_dir, out, seed, quick=quick)
    _finish(sweeps, out, "figure3", draw_figure3)


def figure4(
    dataset: Annotated[str, typer.Option(help="Name of the data set beside the artificial one.")] = "ionosphere",
    repetitions: Annotated[int, typer.Option(help="Repetitions for each number of evaluations.")] = 200,
    data_dir: DataDir = None,
    out: Out = OUT,
    seed: Seed = 0,
    quick: Quick = False,
) -> None:
    """The squared norm of the gradient against the prior's strength v0, for several numbers of evaluations M."""
    from quell.paper.plots import draw_figure4

    check_counts(repetitions=repetitions)
    data = load_all(split_names("data set", dataset, NAMES)[:1], data_dir)[0]
    check_out(out)
    repetitions = min(repetitions, 20) if quick else repetitions
    panels: list[Panel] = []
    with progress(3) as advance:
        for chosen, lag in ((artificial_dataset(), 0), (data, 0), (data, LAG)):
            panels.append(run_panel(chosen, lag=lag, repetitions=repetitions, seed=seed))
            advance(f"{chosen.name}, lag {lag}")
    write_json(out / "figure4.json", {"panels": [panel.as_json() for panel in panels]})
    draw_figure4(panels, out / "figure4.png")
    output_console().print(f"Written to {out / 'figure4.png'} and {out / 'figure4.json'}")


def _sweep(datasets: str, runs: int, data_dir: Path | None, out: Path, seed: int, *, quick: bool) -> list[Sweep]:
    check_counts(runs=runs)
    loaded = load_all(split_names("data set", datasets, NAMES), data_dir)
    check_out(out)
    columns, steps = COLUMNS, protocol.STEPS
    if quick:
        loaded, columns, runs, steps = loaded[:1], ("none", "c5", "c7"), 2, 100
    with progress(len(loaded) * len(columns)) as advance:
        return run_sweep(
            loaded,
            columns,
            num_runs=runs,
            num_steps=steps,
            seed=seed,
            num_workers=num_workers(),
            on_cell=lambda sweep: advance(f"{sweep.dataset} {sweep.variates}"),
        )


def _finish(sweeps: list[Sweep], out: Path, name: str, draw: Callable[[list[Sweep], Path], None]) -> None:
    write_json(out / f"{name}.json", {"sweeps": [sweep.as_json() for sweep in sweeps]})
    draw(sweeps, out / f"{name}.png")
    output_console().print(f"Written to {out / name}.png and {out / name}.json")


COMMANDS = (figure1, figure2, figure3, figure4)
