# SPDX-License-Identifier: Apache-2.0
"""What the commands of `quell reproduce` share."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from quell.checks import check_count, check_name
from quell.paper import Dataset, DatasetUnavailable, load
from quell.paper.workers import available_cores

MOST_WORKERS = 3
"""Each needs up to a gigabyte."""

_WIDE = 132


def output_console() -> Console:
    """The terminal; wide enough for a table where the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def num_workers() -> int:
    """Processes for independent experiments."""
    return min(available_cores(), MOST_WORKERS)


def split_names(kind: str, text: str, valid: Sequence[str]) -> list[str]:
    """Names separated by commas, each checked; an error tells the nearest valid ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    with bad_parameters():
        for name in names or [text]:
            check_name(kind, name, valid)
    return list(dict.fromkeys(names))


def check_counts(**counts: int) -> None:
    """Refuse counts that are not positive."""
    with bad_parameters():
        for name, value in counts.items():
            check_count(name, value)


@contextlib.contextmanager
def bad_parameters() -> Iterator[None]:
    """Show a bad value as an error of the command line, not as a traceback."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


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


@contextlib.contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A bar that is moved on by one, with the name of what was done."""
    columns = (
        TextColumn("{task.description:28}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("compiling", total=total)
        yield lambda name: bar.update(task, advance=1, description=name)


def check_out(out: Path) -> None:
    """Refuse an output folder that cannot be one, before the work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"`--out` was given as {out}, where no folder can be made ({error.strerror}). A folder was needed. "
            "Type for example `--out reproduction`."
        ) from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a report."""
    path.write_text(json.dumps(content, indent=2) + "\n")
