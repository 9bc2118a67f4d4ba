# SPDX-License-Identifier: Apache-2.0
"""What the commands share: an option, the console, errors in one line."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

Seed = Annotated[int, typer.Option(help="Seed of all draws.", min=0, max=2**31 - 1)]

_WIDE = 132


def output_console() -> Console:
    """The terminal; wide enough for a table where the output goes to a file."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


@contextlib.contextmanager
def bad_parameters() -> Iterator[None]:
    """Show a bad value as an error of the command line, not as a traceback."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say in words that work was interrupted, or that a disk is full; what is finished stays in the folder."""
    try:
        yield
    except KeyboardInterrupt:
        text, code = f"Interrupted. What was finished is in {folder}; the same command goes on from there.", 130
    except OSError as error:
        text, code = f"A result could not be written to {folder} ({error.strerror}). Make room and type it again.", 1
    else:
        return
    Console(stderr=True).print(escape(text), soft_wrap=True)
    raise typer.Exit(code=code)
