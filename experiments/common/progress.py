# SPDX-License-Identifier: Apache-2.0
"""Many experiments at once, with a progress bar, resuming from the results of an earlier run."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.common.experiment import AbstractExperiment
from experiments.common.options import CELLS, say
from experiments.common.store import Store
from experiments.common.workers import available_cores, longest_first, run_experiments
from quell.cli.common import resumable

_MOST_WORKERS = 3
"""Each worker needs up to a gigabyte."""


def run_all(experiments: Sequence[AbstractExperiment[Any]], out: Path, *, num_workers: int | None = None) -> list[Any]:
    """Run what an earlier run into the same folder did not finish, and return all results in the order given.

    Args:
        experiments: of any kinds.
        out: output folder; finished results are kept in a folder inside it.
        num_workers: processes; by default one per core, or one where JAX has an accelerator.
    """
    store, workers = Store(out / CELLS), default_workers() if num_workers is None else num_workers
    missing = [one for one in experiments if store.find(one) is None]
    if len(missing) < len(experiments):
        kept = len(experiments) - len(missing)
        say(f"{kept} of {len(experiments)} results were kept by an earlier run (delete {store.folder} to redo them).")
    with _progress(missing, workers) as on_done, resumable(store.folder):
        return run_experiments(experiments, store=store, num_workers=workers, on_done=on_done)


def default_workers() -> int:
    """Processes for independent experiments: one per core, or a single one where JAX has an accelerator."""
    return min(available_cores(), _MOST_WORKERS) if jax.default_backend() == "cpu" else 1


@contextlib.contextmanager
def _progress(
    missing: Sequence[AbstractExperiment[Any]], workers: int
) -> Iterator[Callable[[AbstractExperiment[Any]], None]]:
    """A bar in units of estimated seconds, with the names of the running experiments."""
    console, waiting = Console(stderr=True), {one.fingerprint: one for one in longest_first(missing)}
    total = sum(one.seconds for one in missing)
    if total > 60:
        minutes = 1 + total / workers / 60
        console.print(f"{len(missing)} experiments, about {minutes:.0f} minutes on {workers} ordinary cores.")
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
