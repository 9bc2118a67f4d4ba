# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench proof`: every method on every posterior and every large model; and `page`."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.bench.large.commands import large
from experiments.bench.large.methods import METHODS as LARGE_METHODS
from experiments.bench.large.models import MODELS
from experiments.bench.page import LARGE, POSTERIORDB, write_page
from experiments.bench.posteriordb.commands import posteriordb as posteriors
from experiments.bench.posteriordb.methods import METHODS
from experiments.common.options import check_out
from quell.cli.common import Seed, output_console

RESULTS = Path(__file__).parents[1] / "results"
"""Of the runs that the documentation tells of."""


def proof(
    posteriordb: Annotated[Path, typer.Option(help="Folder with reference.json and data/NAME.npz.")],
    out: Annotated[Path, typer.Option(help="Folder of the results and the page.")] = Path("bench"),
    seed: Seed = 0,
) -> None:
    """Everything, on one page: `posteriordb` and `large` with all methods; ten hours, and it may be interrupted."""
    posteriors(posteriordb, methods=",".join(METHODS), out=out, seed=seed)
    large(models=",".join(MODELS), methods=",".join(LARGE_METHODS), out=out, seed=seed)


def page(
    results: Annotated[Path, typer.Option(help=f"Folder with {POSTERIORDB} or {LARGE}.")] = RESULTS,
    out: Annotated[Path, typer.Option(help="Folder of the page.")] = Path("bench"),
) -> None:
    """The page of results that are there; by default of those that the documentation tells of."""
    if not any((results / name).exists() for name in (POSTERIORDB, LARGE)):
        raise typer.BadParameter(f"`--results` must have {POSTERIORDB} or {LARGE}, got {results}.")
    check_out(out)
    output_console().print(f"Written to {write_page(results, out)}")
