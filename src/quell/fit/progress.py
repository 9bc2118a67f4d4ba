# SPDX-License-Identifier: Apache-2.0
"""How far a fit has come: for a callback, and as a progress bar; both between chunks only."""

import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from quell.evaluation import Problem
from quell.families import FullRank
from quell.fit.history import History

LONG_SECONDS = 600.0
"""A fit that takes longer is told at its beginning."""

SMALL_RANK = 10
"""Of the family that is named instead of a large full-rank one."""

Report = Callable[[int, float], None]
"""Updates a progress bar with the steps done and the current ELBO."""


class FitProgress(eqx.Module):
    """How far a fit has come.

    Args:
        fit: number of the fit among those of `fit_many`; 0 for `fit`.
        step: steps done.
        steps: steps in all.
        params: of the family, as they are now.
        recent: history of the steps since the callback was called before.
        seconds: spent so far.
    """

    fit: int
    step: int
    steps: int
    params: PyTree
    recent: History
    seconds: float


Callback = Callable[[FitProgress], Any]
"""Called between chunks; returning True ends the fit."""


def wants_bar(asked: bool | None) -> bool:
    """Whether to show a bar; by default if rich is installed and stderr is a terminal."""
    has_rich = importlib.util.find_spec("rich") is not None
    if asked and not has_rich:
        raise ModuleNotFoundError(
            "`progress=True` needs rich, which is not installed; try `pip install 'quell[cli]'` or `progress=False`."
        )
    return asked or (asked is None and has_rich and sys.stderr.isatty())


@contextlib.contextmanager
def progress_bar(num_steps: int, *, first: int = 0, show: bool) -> Iterator[Report]:
    """Yield a function of (steps done, current ELBO).

    Args:
        num_steps: steps in all.
        first: steps done before, which do not count for the speed.
        show: whether there is a bar at all.
    """
    if not show:
        yield lambda done, elbo: None
        return
    import rich.console
    import rich.progress as bar

    columns = (
        bar.TextColumn("ELBO {task.fields[elbo]:>12}"),
        bar.BarColumn(),
        bar.MofNCompleteColumn(),
        bar.TextColumn("{task.fields[rate]}"),
        bar.TimeRemainingColumn(),
    )
    with bar.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as shown:
        task = shown.add_task("fit", total=num_steps, completed=first, elbo="compiling", rate="")

        def report(done: int, elbo: float) -> None:
            elapsed = shown.tasks[task].elapsed or 0.0
            rate = f"{(done - first) / elapsed:,.0f} steps/s" if elapsed > 0 else ""
            shown.update(task, completed=done, elbo=f"{elbo:,.2f}", rate=rate)

        yield report


def warn_if_long(problem: Problem, state: PyTree, steps: int, seconds: float) -> None:
    """Say what a long fit will take, and what would take less.

    Args:
        problem: model and family.
        state: of the fit.
        steps: to be taken.
        seconds: of a step.
    """
    if steps * seconds < LONG_SECONDS:
        return
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    text = (
        f"The fit may take {steps:,} more steps of {seconds:.2g} s, about {steps * seconds / 60:,.0f} minutes; its "
        f"state has {size / 1e9:.2g} GB, and a step needs several times that."
    )
    family = problem.family
    if isinstance(family, FullRank) and family.dim > SMALL_RANK:
        text += (
            f" It has {family.num_params:,} parameters: `quell.LowRank({family.dim}, rank={SMALL_RANK})` has "
            f"{(SMALL_RANK + 2) * family.dim:,}, `quell.MeanField({family.dim})` {2 * family.dim:,}."
        )
    warnings.warn(text, stacklevel=2)
