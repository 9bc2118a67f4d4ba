# SPDX-License-Identifier: Apache-2.0
"""A progress bar that is only touched between chunks."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

Report = Callable[[int, float], None]


def wants_bar(asked: bool | None) -> bool:
    """Whether to show a bar; where nobody said, only with rich installed and somebody watching."""
    has_rich = importlib.util.find_spec("rich") is not None
    if asked and not has_rich:
        raise ModuleNotFoundError(
            "`progress=True` was given, and rich is not installed. The extra `cli` was needed. "
            "Type `pip install 'quell[cli]'`, or write `progress=False`."
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
