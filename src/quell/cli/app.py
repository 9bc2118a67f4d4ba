# SPDX-License-Identifier: Apache-2.0
"""The root of the command line."""

from typing import Annotated, Any

import jax
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
def root(
    compiled: Annotated[
        bool, typer.Option(help="Keep compiled programs for later commands, in ~/.cache/quell/compiled.")
    ] = True,
) -> None:
    """Variational inference with control variates."""
    config: Any = jax.config
    if not compiled or config.jax_compilation_cache_dir is not None:
        return
    try:
        quell.keep_compiled()
    except OSError as error:  # a home that cannot be written to
        typer.echo(f"Compiled programs are not kept: {error}", err=True)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(quell.__version__)
