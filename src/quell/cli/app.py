# SPDX-License-Identifier: Apache-2.0
"""The root of the command line."""

import typer

import quell
from quell.cli.fit import fit, report
from quell.cli.sweep import sweep
from quell.cli.variates import variates

app = typer.Typer(
    help="Variational inference with control variates.", no_args_is_help=True, pretty_exceptions_enable=False
)
app.command()(fit)
app.command()(report)
app.command()(sweep)
app.command()(variates)


@app.callback()
def root() -> None:
    """Variational inference with control variates."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(quell.__version__)
