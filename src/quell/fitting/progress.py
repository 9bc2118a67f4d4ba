# SPDX-License-Identifier: Apache-2.0
"""A progress bar that is only touched between chunks."""

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator

Report = Callable[[int, float], None]


@contextlib.contextmanager
def progress_bar(num_steps: int, *, show: bool | None) -> Iterator[Report]:
    """Yield a function of (steps done, current ELBO).

    Args:
        num_steps: steps in all.
        show: `None` shows a bar where rich is installed and somebody is watching.
    """
    has_rich = importlib.util.find_spec("rich") is not None
    if show and not has_rich:
        raise ModuleNotFoundError(
            "`progress=True` was given, and rich is not installed. The extra `cli` was needed. "
            "Type `pip install 'quell[cli]'`, or write `progress=False`."
        )
    if not (show or (show is None and has_rich and sys.stderr.isatty())):
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
        task = shown.add_task("fit", total=num_steps, elbo="compiling", rate="")

        def report(done: int, elbo: float) -> None:
            elapsed = shown.tasks[task].elapsed or 0.0
            rate = f"{done / elapsed:,.0f} steps/s" if elapsed > 0 else ""
            shown.update(task, completed=done, elbo=f"{elbo:,.2f}", rate=rate)

        yield report
