# SPDX-License-Identifier: Apache-2.0
"""Shared by all commands: the seed option, the console, errors in one line."""

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
    """The terminal, or a console wide enough for a table if stdout is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


@contextlib.contextmanager
def bad_parameters() -> Iterator[None]:
    """Turn a `ValueError` into an error of the command line without a traceback."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Print a recovery hint on Ctrl-C or a full disk; finished results stay in the folder."""
    try:
        yield
    except KeyboardInterrupt:
        text, code = f"Interrupted. Finished results are in {folder}; run the same command again to resume.", 130
    except OSError as error:
        text, code = (
            f"A result could not be written to {folder} ({error.strerror}); make room and run it again.",
            1,
        )
    else:
        return
    Console(stderr=True).print(escape(text), soft_wrap=True)
    raise typer.Exit(code=code)
