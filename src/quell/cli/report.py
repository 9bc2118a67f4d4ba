# SPDX-License-Identifier: Apache-2.0
"""`quell report`: write the results of a fit again, from its checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

import quell
from quell.cli.common import bad_parameters
from quell.cli.fit import print_outcome
from quell.cli.fit_folder import FitFolder
from quell.fit.driver import restore_plan


def report(folder: Annotated[Path, typer.Argument(help="Folder that `quell fit` wrote.")]) -> None:
    """Write summary, draws and report of a fit again, from its checkpoint; nothing is fitted."""
    found = FitFolder(folder)
    with bad_parameters():
        settings = found.read_settings()
        plan = settings.plan(checkpoint=quell.Checkpoint(found.checkpoint, resume=True))
        result = restore_plan(plan)[0]
    found.write_outputs(result, seed=settings.seed)
    print_outcome(found, result)
