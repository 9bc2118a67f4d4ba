# SPDX-License-Identifier: Apache-2.0
"""`quell reproduce`: the paper's experiments."""

import typer

from experiments.paper.command_everything import everything
from experiments.paper.command_figures import COMMANDS
from experiments.paper.command_table1 import table1

app = typer.Typer(help="Reproduce the experiments of the paper.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Reproduce the experiments of the paper."""


for _command in (table1, *COMMANDS):
    app.command()(_command)
app.command("all")(everything)
