# SPDX-License-Identifier: Apache-2.0
"""How far a fit has come: for a callback, and as a progress bar; both between chunks only."""

import importlib.util
import sys
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
from jax.sharding import Mesh
from jaxtyping import PyTree

from quell.core.compile_clock import COMPILE_CLOCK
from quell.core.devices import in_use
from quell.core.processes import is_first
from quell.evaluation import Problem
from quell.families import FullRank
from quell.fit.history import History

if TYPE_CHECKING:
    import rich.progress

LONG_SECONDS = 600.0
"""A fit that takes longer is told at its beginning."""

SMALL_RANK = 10
"""Of the family that is named instead of a large full-rank one."""


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


class ProgressBar:
    """What a fit is doing, for how long, and how far it has come.

    Args:
        steps: in all.
        show: whether anything is shown.
    """

    def __init__(self, steps: int, *, show: bool) -> None:
        """Show that a model is read."""
        self._stage, self._began, self._first = "reading the model", time.perf_counter(), 0
        self._bar = _rich_bar(self._stage_text) if show else None
        self._task = None if self._bar is None else self._bar.add_task("", total=steps, elbo="", rate="")

    def __enter__(self) -> "ProgressBar":
        """Draw it."""
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        if self._bar is not None:
            self._bar.stop()

    def enter(self, stage: str, *, first: int = 0) -> None:
        """Begin a stage.

        Args:
            stage: what is done in it.
            first: steps done before, which do not count for the speed.
        """
        self._stage, self._began, self._first = stage, time.perf_counter(), first
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=first, elbo="", rate="")

    def report(self, done: int, elbo: float) -> None:
        """Show the steps done and the current ELBO."""
        if self._bar is not None and self._task is not None:
            rate = (done - self._first) / max(time.perf_counter() - self._began, 1e-3)
            self._bar.update(self._task, completed=done, elbo=f"ELBO {elbo:,.2f}", rate=f"{rate:,.0f} steps/s")

    def _stage_text(self) -> str:
        stage = "compiling" if COMPILE_CLOCK.is_running else self._stage
        return f"{stage} {time.perf_counter() - self._began:.0f} s"


def progress_bar(asked: bool | None, steps: int, mesh: Mesh | None = None) -> ProgressBar:
    """The bar of a fit; of several processes that share it the first has one.

    Args:
        asked: whether to show it; by default if rich is installed and stderr is a terminal.
        steps: in all.
        mesh: of the devices that it is spread over.
    """
    with in_use(mesh):
        return ProgressBar(steps, show=wants_bar(asked) and is_first())


def _rich_bar(stage_text: Callable[[], str]) -> "rich.progress.Progress":
    import rich.console
    import rich.progress
    import rich.text

    class Stage(rich.progress.ProgressColumn):
        """The present stage, and its seconds."""

        def render(self, task: rich.progress.Task) -> rich.text.Text:
            return rich.text.Text(f"{stage_text():<22}")

    return rich.progress.Progress(
        Stage(),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[elbo]}"),
        rich.progress.TextColumn("{task.fields[rate]}"),
        console=rich.console.Console(stderr=True),
        transient=True,
    )


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
