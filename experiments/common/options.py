# SPDX-License-Identifier: Apache-2.0
"""Options of the commands, and their checks."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from quell.cli.common import bad_parameters
from quell.core.checks import check_count, check_name
from quell.paper import Dataset, DatasetUnavailable, load

DataDir = Annotated[Path | None, typer.Option(help="Folder with australian.csv.")]

CELLS = "cells"
"""Folder of finished results inside the output folder."""


def split_names(kind: str, text: str, valid: Sequence[str]) -> list[str]:
    """Names separated by commas, each checked; an error suggests the nearest valid ones."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    with bad_parameters():
        for name in names or [text]:
            check_name(f"The {kind}", name, valid)
    return list(dict.fromkeys(names))


def one_name(kind: str, text: str, valid: Sequence[str]) -> str:
    """A single name."""
    names = split_names(kind, text, valid)
    if len(names) > 1:
        raise typer.BadParameter(f"The {kind} must be a single name, got {text!r}; try {names[0]!r}.")
    return names[0]


def check_counts(**counts: int) -> None:
    """Refuse counts that are not positive."""
    with bad_parameters():
        for name, value in counts.items():
            check_count(name, value)


def load_all(names: Sequence[str], data_dir: Path | None) -> list[Dataset]:
    """Load the data sets that are available; one line on stderr for each that is not."""
    loaded = []
    for name in names:
        try:
            loaded.append(load(name, data_dir=data_dir))
        except DatasetUnavailable as error:
            say_left_out(name, f"{error} On this command: `--data-dir DIR`.")
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    if not loaded:
        raise typer.Exit(code=1)
    return loaded


def check_out(out: Path) -> None:
    """Refuse an output folder that cannot be written to, before the work is done."""
    try:
        (out / CELLS).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out / CELLS):
            pass
    except OSError as error:
        raise typer.BadParameter(f"`--out` must be a writable folder, got {out} ({error.strerror}).") from None


def say_left_out(name: str, reason: str) -> None:
    """One line on stderr for something that is not run."""
    Console(stderr=True).print(f"[yellow]Left out {escape(name)}:[/yellow] {escape(reason)}", soft_wrap=True)


def say(text: str) -> None:
    """One line on stderr."""
    Console(stderr=True).print(escape(text), soft_wrap=True)
