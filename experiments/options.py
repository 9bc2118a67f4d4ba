# SPDX-License-Identifier: Apache-2.0
"""What the commands of `quell reproduce` share: their options, their checks, the run with its progress."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.paper.experiment import AbstractExperiment, Store, longest_first, run_experiments
from experiments.paper.workers import available_cores
from quell.cli.common import bad_parameters, resumable
from quell.core.checks import check_count, check_name
from quell.paper import Dataset, DatasetUnavailable, load

DataDir = Annotated[Path | None, typer.Option(help="Folder with australian.csv.")]
Out = Annotated[Path, typer.Option(help="Folder for pictures, reports and the results behind them.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Within a minute: the first data set, few columns, runs and steps.")
]
Datasets = Annotated[str, typer.Option(help="Names, separated by commas.")]

OUT = Path("reproduction")
CELLS = "cells"
"""Folder of finished pieces within the output folder."""

MOST_WORKERS = 3
"""Each needs up to a gigabyte."""


def num_workers() -> int:
    """Processes for independent experiments: one a core; only one where JAX has a device of another kind."""
    return min(available_cores(), MOST_WORKERS) if jax.default_backend() == "cpu" else 1


def split_names(kind: str, text: str, valid: Sequence[str]) -> list[str]:
    """Names separated by commas, each checked; an error tells the nearest valid ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    with bad_parameters():
        for name in names or [text]:
            check_name(kind, name, valid)
    return list(dict.fromkeys(names))


def one_name(kind: str, text: str, valid: Sequence[str]) -> list[str]:
    """One name; several are refused."""
    names = split_names(kind, text, valid)
    if len(names) > 1:
        raise typer.BadParameter(
            f"{len(names)} names were given: {text}. One was needed. Type for example `{names[0]}`."
        )
    return names


def check_counts(**counts: int) -> None:
    """Refuse counts that are not positive."""
    with bad_parameters():
        for name, value in counts.items():
            check_count(name, value)


def load_all(names: Sequence[str], data_dir: Path | None) -> list[Dataset]:
    """Load what is there; say in one line what was left out."""
    loaded = []
    for name in names:
        try:
            loaded.append(load(name, data_dir=data_dir))
        except DatasetUnavailable as error:
            text = f"[yellow]Left out {name}:[/yellow] {escape(str(error))} On this command: `--data-dir DIR`."
            Console(stderr=True).print(text, soft_wrap=True)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if not loaded:
        raise typer.Exit(code=1)
    return loaded


def check_out(out: Path) -> None:
    """Refuse an output folder that cannot be one, before the work is done."""
    try:
        (out / CELLS).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / CELLS):
            pass
    except OSError as error:
        raise typer.BadParameter(
            f"`--out` was given as {out}, where nothing can be written ({error.strerror}). A folder was needed. "
            "Type for example `--out reproduction`."
        ) from None


def run_all(experiments: Sequence[AbstractExperiment[Any]], out: Path) -> list[Any]:
    """Run what an earlier run into the same folder did not finish, and show how far it is."""
    store, errors = Store(out / CELLS), Console(stderr=True)
    missing = [one for one in experiments if store.find(one) is None]
    if len(missing) < len(experiments):
        kept = len(experiments) - len(missing)
        text = (
            f"{kept} of {len(experiments)} pieces are there from an earlier run (delete {store.folder} to redo them)."
        )
        errors.print(escape(text), soft_wrap=True)
    with _progress(missing, errors) as on_done, resumable(store.folder):
        return run_experiments(experiments, store=store, num_workers=num_workers(), on_done=on_done)


@contextlib.contextmanager
def _progress(
    missing: Sequence[AbstractExperiment[Any]], console: Console
) -> Iterator[Callable[[AbstractExperiment[Any]], None]]:
    """A bar that counts expected seconds, with the names of what runs now."""
    waiting, workers = {one.fingerprint: one for one in longest_first(missing)}, num_workers()
    total = sum(one.seconds for one in missing)
    if total > 60:
        console.print(
            f"{len(missing)} pieces, about {1 + total / workers / 60:.0f} minutes on {workers} ordinary cores."
        )
    columns = (
        TextColumn("{task.description:44}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )

    def running() -> str:
        return ", ".join(one.name for one in list(waiting.values())[:workers])

    with Progress(*columns, console=console, transient=True, speed_estimate_period=600) as bar:
        task = bar.add_task(running(), total=total or 1.0)

        def on_done(experiment: AbstractExperiment[Any]) -> None:
            if waiting.pop(experiment.fingerprint, None) is not None:
                if not console.is_terminal:
                    console.print(f"{experiment.name} is done, {len(waiting)} to go", soft_wrap=True)
                bar.update(task, advance=experiment.seconds, description=running() or "drawing")

        yield on_done
