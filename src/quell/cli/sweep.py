# SPDX-License-Identifier: Apache-2.0
"""`quell sweep`: many fits of a model from a file, and a table of them."""

import math
import shlex
from pathlib import Path
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

from quell.cli.cluster import Coordinator, NumProcesses, ProcessId, join, together
from quell.cli.common import Seed, bad_parameters, output_console, resumable
from quell.cli.fit_settings import FAMILIES, FitSettings
from quell.core.atomic import write_atomically
from quell.core.checks import check_count
from quell.diagnostics.theme import png_bytes
from quell.sweep import SweepResult, SweepRow
from quell.sweep.plan import SweepPlan
from quell.sweep.rates import checked_rates
from quell.sweep.subsets import check_subset

_RATES = "0.001,0.003,0.01,0.03,0.1"


def sweep(
    model: Annotated[str, typer.Argument(help="FILE.py:MODEL, or FILE.py if it has one model.")],
    out: Annotated[Path, typer.Option(help="Folder for the table, the figure and finished subsets.")],
    data: Annotated[
        Path | None, typer.Option(help="Arrays for a MODEL that is a function: .npz, or .csv with a header.")
    ] = None,
    family: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "fullrank",
    rates: Annotated[str, typer.Option(help="Initial rates of Adam with cosine decay.")] = _RATES,
    subsets: Annotated[
        str, typer.Option(help="Variates: default, none, S4 to S7, c1 to c7, or sums such as c1+c7.")
    ] = "none,default",
    seeds: Annotated[int, typer.Option(help="Fits per subset and rate.")] = 8,
    steps: Annotated[int, typer.Option(help="Steps of each fit.")] = 2000,
    seed: Seed = 0,
    batch_size: Annotated[
        int | None, typer.Option(help="Data per minibatch; default: all, or 100 if there are many.")
    ] = None,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
) -> None:
    """Fit a model at many learning rates, from many seeds, with several sets of variates; a second run resumes."""
    with bad_parameters():
        listed = [name.strip() for name in subsets.split(",") if name.strip()]
        for name in listed:
            check_subset(name)
        numbers = _numbers(rates)
        check_count("seeds", seeds)
        settings = FitSettings(
            model=model,
            data=None if data is None else str(data),
            family=family,
            steps=steps,
            seed=seed,
            learning_rate=numbers[0],
            batch_size=batch_size,
            variates="none",
        ).resolved()
        join(coordinator, num_processes, process_id)
        plan = _plan(settings, numbers, listed, seeds)
        result = _run(plan, out)
    if jax.process_index() == 0:
        picture = png_bytes(result.plot(), dpi=160)
        with resumable(out):
            write_atomically(out / "sweep.png", lambda file: file.write(picture))
        _print_outcome(result, settings, out)


def _plan(settings: FitSettings, rates: tuple[float, ...], subsets: list[str], seeds: int) -> SweepPlan:
    """Read model and data, and plan fits that are those of `quell fit --learning-rate RATE --variates SUBSET`."""
    problem = settings.problem()
    with settings.explained():
        return SweepPlan.of(
            jax.random.key(settings.seed),
            problem,
            learning_rates=rates,
            subsets=subsets,
            num_seeds=seeds,
            optimizer=settings.adam(),
            steps=settings.steps,
            sampler=settings.sampler(problem),
        )


def _run(plan: SweepPlan, out: Path) -> SweepResult:
    """Run what is missing, with a line per subset; Ctrl-C leaves a checkpoint."""
    errors = Console(stderr=True)

    def report(rows: tuple[SweepRow, ...], was_there: bool) -> None:
        num_fits, seconds = sum(row.num_seeds for row in rows), rows[0].seconds
        how = "finished in an earlier run" if was_there else f"{num_fits} fits in {seconds:.1f} s"
        errors.print(escape(f"{rows[0].subset}: {how}"), soft_wrap=True)

    with resumable(out), together():
        return plan.run(out, report)


def _print_outcome(result: SweepResult, settings: FitSettings, out: Path) -> None:
    """The table, and the command for its best row; a sweep in which all diverge is a failure."""
    console = output_console()
    best = max(result.rows, key=lambda row: row.median)
    title = f"ELBO after {result.steps} steps, {best.num_seeds} seeds; seconds of all rates"
    console.print(escape(f"{title}\n{result!r}\nWritten to {out}: sweep.png shows it."), soft_wrap=True)
    if best.median == -math.inf:
        text = "At every learning rate half of the fits, or more, diverged; try smaller `--rates` and another `--out`."
        Console(stderr=True).print(escape(text), soft_wrap=True)
        raise typer.Exit(code=1)
    console.print(escape(f"To fit with the best: {_command(best, settings)}"), soft_wrap=True)


def _command(best: SweepRow, settings: FitSettings) -> str:
    words = ["quell", "fit", settings.model]
    words += [] if settings.data is None else ["--data", settings.data]
    words += [] if settings.batch_size is None else ["--batch-size", str(settings.batch_size)]
    words += ["--family", settings.family, "--steps", str(settings.steps), "--learning-rate", repr(best.learning_rate)]
    return shlex.join([*words, "--variates", best.subset.replace("+", ","), "--out", "fit"])


def _numbers(text: str) -> tuple[float, ...]:
    """Learning rates, separated by commas."""
    try:
        numbers = [float(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ValueError(
            f"`--rates` must be positive numbers separated by commas, got {text!r}; try `--rates {_RATES}`."
        ) from None
    return checked_rates(numbers)
