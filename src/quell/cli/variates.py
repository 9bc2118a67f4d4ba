# SPDX-License-Identifier: Apache-2.0
"""`quell variates`: the catalogue for a model and a family."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import quell
from quell.cli import fit_settings
from quell.cli.common import bad_parameters, output_console
from quell.cli.model_file import load_model
from quell.core.atomic import write_atomically
from quell.core.checks import check_count, check_name
from quell.families import AbstractFamily
from quell.models import AbstractModel

FAMILIES: dict[str, Callable[[int], AbstractFamily]] = fit_settings.FAMILIES | {
    "lowrank": lambda dim: quell.LowRank(dim, rank=1),
    "gamma": quell.Gamma,
    "beta": quell.Beta,
    "bernoulli": quell.Bernoulli,
}


def variates(
    model: Annotated[str, typer.Argument(help="logistic, poisson, gaussian, or FILE.py:MODEL.")],
    family: Annotated[str, typer.Option(help=f"One of {', '.join(FAMILIES)}.")] = "fullrank",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the whole catalogue to this file.")] = None,
    redundant: Annotated[bool, typer.Option("--redundant", help="Also show linear combinations of others.")] = False,
    dim: Annotated[
        int | None, typer.Option(help="Leave out variates that need too much memory with so many coordinates.")
    ] = None,
) -> None:
    """The catalogue of control variates for a model and a family: term, approximation, estimator pair and cost."""
    with bad_parameters():
        check_name("The family", family, FAMILIES)
        large = None if dim is None else _large(model, FAMILIES[family], family, dim)
        chosen = _model(model)
    with bad_parameters(), Console(stderr=True).status("counting operations and looking for linear combinations"):
        found = quell.catalogue(chosen, FAMILIES[family](chosen.dim), large=large)
    if json_file is not None:
        _write(json_file, found)
    console = output_console()
    title = f"{found}, for {chosen} and a {family} family"
    if large is not None:
        title += f"; affordable at d = {large.model.dim:,} (operations are those at d = {chosen.dim})"
    console.print(_table(found, title, redundant=redundant))
    _print_reasons(console, found, None if large is None else large.model.dim)
    if json_file is not None:
        console.print(f"Written to {json_file}")


def _table(found: quell.Catalogue, title: str, *, redundant: bool) -> Table:
    table = Table(title=escape(title))
    for header in ("name", "term", "approximation", "left", "right", "operations", *([""] if redundant else [])):
        table.add_column(header, overflow="fold", justify="right" if header == "operations" else "left")
    for entry in found.valid:
        if entry.redundant and not redundant:
            continue
        recipe = entry.as_json()
        cells = [recipe["name"], recipe["term"], recipe["approximation"] or "", recipe["left"], recipe["right"]]
        mark = ["a combination" if entry.redundant else ""] if redundant else []
        table.add_row(*(escape(cell) for cell in cells), f"{entry.cost:,.0f}", *mark)
    return table


def _print_reasons(console: Console, found: quell.Catalogue, large_dim: int | None) -> None:
    reasons = Counter(entry.reason for entry in found.invalid)
    console.print(f"{len(found.invalid)} recipes do not apply, most of them because:")
    for reason, count in reasons.most_common(6):
        console.print(f"  {count:4d}  {escape(reason)}", soft_wrap=True)
    if large_dim is not None:
        costly = [entry for entry in found.invalid if "affordable" in entry.reason]
        console.print(f"{len(costly)} more are not affordable at d = {large_dim:,}.", soft_wrap=True)
        for entry in costly[:1]:
            console.print(f"  {escape(f'{entry.name}: {entry.reason}')}", soft_wrap=True)


LARGEST_FAMILY = 2**30
"""Largest number of parameters: four gigabytes in single precision."""


def _large(text: str, make_family: Callable[[int], AbstractFamily], name: str, dim: int) -> quell.Problem:
    """A built-in model with more coordinates, which is traced but not run."""
    check_count("dim", dim)
    if ".py" in text:
        raise ValueError(
            f"`--dim` needs a built-in model, got {dim} for {text}; try `quell variates logistic --dim {dim}`."
        )
    family = make_family(dim)
    if family.num_params > LARGEST_FAMILY:
        raise ValueError(
            f"A {name} family must have at most {LARGEST_FAMILY:,} parameters, got {family.num_params:,} for "
            f"`--dim {dim}`; try `--family meanfield`."
        )
    return quell.Problem(_model(text, dim), family)


def _model(text: str, dim: int = 3) -> AbstractModel:
    """A small built-in model, or one from a file."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(8, dim))
    if text == "logistic":
        return quell.logistic_regression(features, np.arange(8) % 2)
    if text == "poisson":
        return quell.poisson_regression(0.3 * features, np.arange(8) % 4)
    if text == "gaussian":
        return quell.gaussian_regression(features, rng.normal(size=8), noise=0.5)
    if ".py" not in text:
        check_name("The model", text, ("logistic", "poisson", "gaussian", "FILE.py:MODEL"))
    return load_model(text)


def _write(path: Path, found: quell.Catalogue) -> None:
    try:
        write_atomically(path, lambda file: file.write((json.dumps(found.as_json(), indent=1) + "\n").encode()))
    except OSError as error:
        raise typer.BadParameter(
            f"`--json` must be a writable file, got {path} ({error.strerror}); try `--json variates.json`."
        ) from None
