# SPDX-License-Identifier: Apache-2.0
"""`quell fit` and `quell report`: a model from a file, data from a file, and a folder with the results."""

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

import quell
from quell.cli.cluster import Coordinator, NumProcesses, ProcessId, join, together
from quell.cli.common import Seed, bad_parameters, output_console
from quell.cli.fit_folder import FitFolder
from quell.cli.fit_settings import FAMILIES, FitSettings
from quell.core.devices import checked_mesh, in_use
from quell.core.processes import first_does
from quell.fit import FitResult
from quell.fit.driver import restore_plan, run_plan
from quell.fit.progress import progress_bar
from quell.fit.status import Status


def fit(
    model: Annotated[str, typer.Argument(help="FILE.py:MODEL, or FILE.py if it has one model.")],
    out: Annotated[Path, typer.Option(help="Folder for the checkpoint, the draws and the report.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Arrays for a MODEL that is a function: .npz, or .csv with a header. A pattern such as 'rows-*.npz' "
            "concatenates files; each of several processes reads its share."
        ),
    ] = None,
    family: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "fullrank",
    steps: Annotated[int, typer.Option(help="Largest number of steps.")] = 2000,
    tolerance: Annotated[
        float, typer.Option(help="Nats below the optimum at which a fit that chooses its method has converged.")
    ] = 0.01,
    seed: Seed = 0,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Initial rate of Adam with cosine decay; default: the method that suits the model."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Data per minibatch; default: all, or 100 if there are many.")
    ] = None,
    variates: Annotated[
        str, typer.Option(help="auto (by rule), default, none, S4 to S7, or some of c1 to c7.")
    ] = "auto",
    checkpoint_every: Annotated[
        int | None, typer.Option(help="Steps between checkpoints; default: one per minute.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the fit in the folder.")] = False,
    all_devices: Annotated[
        bool, typer.Option("--all-devices", help="Shard data and work over all devices of all processes.")
    ] = False,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
) -> None:
    """Fit a model: MODEL is a quell model, a function of the data that returns one, or a NumPyro model."""
    folder = FitFolder(out)
    with bad_parameters(), together():
        settings = FitSettings(
            model=model,
            data=None if data is None else str(data),
            family=family,
            steps=steps,
            tolerance=tolerance,
            seed=seed,
            learning_rate=learning_rate,
            batch_size=batch_size,
            variates=variates,
        ).resolved()
        join(coordinator, num_processes, process_id)
        mesh = checked_mesh("all") if all_devices or jax.process_count() > 1 else None
        with in_use(mesh):
            first_does(lambda: folder.check(settings, resume=resume))
        checkpoint = quell.Checkpoint(folder.checkpoint, every_steps=checkpoint_every, resume=resume)
        with contextlib.ExitStack() as stack:
            bar = stack.enter_context(progress_bar(None, steps, mesh))
            plan = settings.plan(checkpoint=checkpoint, mesh=mesh)
            with in_use(mesh):
                first_does(lambda: stack.enter_context(folder.at_work(settings, resume=resume)))
            result = run_plan(plan, bar)[0]
            if result.status is not Status.INTERRUPTED:
                bar.enter("writing the report", first=result.history.num_steps)
                with in_use(mesh):
                    folder.write_outputs(result, seed=seed)
    if result.status is Status.INTERRUPTED:
        same = ", with the same options for devices" if all_devices else ""
        text = (
            f"Interrupted after {result.history.num_steps} of {steps} steps. To resume{same}: {settings.command(out)}"
        )
        Console(stderr=True).print(escape(text), soft_wrap=True)
        raise typer.Exit(code=130)
    _print_outcome(folder, result)


def report(
    folder: Annotated[Path, typer.Argument(help="Folder that `quell fit` wrote.")],
    model: Annotated[
        str | None, typer.Option(help="FILE.py:MODEL of the fit; default: the one that the folder names, if confirmed.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Run the Python file that the folder names.")] = False,
) -> None:
    """Write summary, draws and report of a fit again, from its checkpoint; nothing is fitted.

    The model's Python file is run: the one of --model, or after a confirmation the one that the folder names.
    """
    found = FitFolder(folder)
    with bad_parameters():
        settings = _with_model(found.read_settings(), model, yes=yes)
        plan = settings.plan(checkpoint=quell.Checkpoint(found.checkpoint, resume=True))
        result = restore_plan(plan)[0]
        found.write_outputs(result, seed=settings.seed)
    _print_outcome(found, result)


def _with_model(settings: FitSettings, model: str | None, *, yes: bool) -> FitSettings:
    """The settings with the model that the user names, or with their own if the user agrees to run it."""
    if model is not None:
        return dataclasses.replace(settings, model=model).resolved()
    if not yes and not _is_terminal():
        raise ValueError(
            f"`quell report` must be told to run the Python file that the folder names, got {settings.model}; pass "
            "`--yes` if you trust it, or `--model FILE.py:MODEL`."
        )
    if not yes:
        typer.confirm(f"Run the Python file of {settings.model}, which the folder names?", abort=True, err=True)
    return settings


def _is_terminal() -> bool:
    """Whether somebody can answer a question."""
    return sys.stdin.isatty()


def _print_outcome(folder: FitFolder, result: FitResult) -> None:
    """Print the result and where it is; exit with an error if the fit has diverged."""
    where = f"see {folder.report.name}" if folder.report.exists() else f"see `quell report {folder.path}`"
    text = f"{result!r}\nWritten to {folder.path}; {where}."
    if jax.process_index() == 0:
        output_console().print(escape(text), soft_wrap=True)
    if result.status is Status.DIVERGED:
        text = f"The fit diverged after {result.history.num_steps} steps. {result.status.value}"
        Console(stderr=True).print(escape(text), soft_wrap=True)
        raise typer.Exit(code=1)
