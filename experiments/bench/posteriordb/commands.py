# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench posteriordb`: many posteriors and methods, and the counts."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from rich.table import Table

from experiments.bench.page import POSTERIORDB, write_results
from experiments.bench.posteriordb.accuracy import MEAN_ERRORS, summarise
from experiments.bench.posteriordb.methods import METHODS, load
from experiments.bench.posteriordb.source import PosteriorFolder
from experiments.common.experiment import AbstractExperiment
from experiments.common.options import check_counts, check_out, say_left_out, split_names
from experiments.common.progress import run_all
from quell.cli.common import Seed, bad_parameters, output_console


@dataclasses.dataclass(frozen=True)
class PosteriorResult:
    """One fit.

    Attributes:
        record: its line of JSON.
    """

    record: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class PosteriorExperiment(AbstractExperiment[PosteriorResult]):
    """One posterior and one method in a fresh process.

    Attributes:
        posterior: name.
        method: one of `METHODS`.
        folder: of data and reference.
        digest: of data and reference.
        seed: of the fit.
        timeout: seconds after which the process is killed.
    """

    result_type: ClassVar[type] = PosteriorResult
    posterior: str
    method: str
    folder: str
    digest: str
    seed: int
    timeout: int

    @property
    def name(self) -> str:
        return f"{self.posterior} {self.method}, seed {self.seed}"

    @property
    def seconds(self) -> float:
        return 15.0

    def run(self) -> PosteriorResult:
        arguments = [self.posterior, self.method, "--posteriordb", self.folder, "--seed", str(self.seed)]
        command = [sys.executable, "-m", "experiments.bench.posteriordb", *arguments]
        failed = {"posterior": self.posterior, "method": self.method, "seconds_total": None}
        try:
            environment = {"JAX_PLATFORMS": "cpu", **os.environ}
            done = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout, env=environment)
        except subprocess.TimeoutExpired:
            return PosteriorResult({**failed, "status": f"not finished in {self.timeout} s"})
        if done.returncode != 0:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            return PosteriorResult({**failed, "status": f"exit code {done.returncode}", "error": last})
        return PosteriorResult(json.loads(done.stdout.splitlines()[-1]))


def posteriordb(
    posteriordb: Annotated[Path, typer.Option(help="Folder with reference.json and data/NAME.npz.")],
    methods: Annotated[str, typer.Option(help=f"Of {', '.join(METHODS)}.")] = "quell,quell-mf",
    names: Annotated[str, typer.Option(help="Posteriors, separated by commas; by default all of the folder.")] = "",
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("bench"),
    seed: Seed = 0,
    runs: Annotated[int, typer.Option(help="Fits of each posterior, with seeds from the given one on.")] = 1,
    timeout: Annotated[int, typer.Option(help="Seconds after which a fit is given up.")] = 600,
) -> None:
    """Seconds and accuracy on the posteriors of posteriordb, one fresh process per fit."""
    folder = PosteriorFolder(posteriordb.resolve())
    with bad_parameters():
        valid = folder.names()
    posteriors = split_names("posterior", names, valid) if names else valid
    chosen = [name for name in split_names("method", methods, list(METHODS)) if is_installed(name, load)]
    check_counts(timeout=timeout, runs=runs)
    if not chosen:
        raise typer.Exit(2)
    check_out(out)
    experiments = [
        PosteriorExperiment(name, method, str(folder.path), folder.digest(name), seed + run, timeout)
        for run in range(runs)
        for method in chosen
        for name in posteriors
    ]
    records = [result.record for result in run_all(experiments, out, num_workers=1)]
    written = write_results(POSTERIORDB, records, out)
    console = output_console()
    console.print(render(records))
    console.print(f"Written to {' and '.join(map(str, written))}")


def is_installed(method: str, load: Callable[[str], Any]) -> bool:
    """Whether a method's library can be imported; one line on stderr where it cannot."""
    try:
        load(method)
    except ModuleNotFoundError as error:
        needed = (error.name or method).partition(".")[0].replace("_", "-")
        say_left_out(method, f"{needed} is not installed; try `pip install {needed}`.")
        return False
    return True


def render(records: list[dict[str, Any]]) -> Table:
    """Counts, one row per method."""
    table = Table()
    heads = [f"mean error < {most:g} sd" for most in MEAN_ERRORS]
    for head in ("method", "median s", "largest s", "warm s", *heads, "all sds within 20%", "converged", "gradients"):
        table.add_column(head, justify="left" if head == "method" else "right")
    for method in dict.fromkeys(record["method"] for record in records):
        counts = summarise([record for record in records if record["method"] == method])
        seconds = [counts[name] for name in ("median_seconds", "largest_seconds", "median_warm")]
        right = [counts[f"mean_error_below_{most:g}"] for most in MEAN_ERRORS] + [counts["sds_within_20_percent"]]
        right.append(counts["converged"])
        texts = ["–" if value is None else f"{value:.1f}" for value in seconds]
        gradients = counts["median_gradients"]
        fractions = [f"{value} of {counts['posteriors']}" for value in right]
        table.add_row(method, *texts, *fractions, "–" if gradients is None else f"{gradients:,.0f}")
    return table
