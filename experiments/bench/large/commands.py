# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench large`: large models and methods, and a page."""

import dataclasses
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import typer
from rich.table import Table

from experiments.bench.large.compare import LARGEST_RHAT, compare, moment_errors
from experiments.bench.large.methods import DEFAULTS, METHODS, REFERENCE, load
from experiments.bench.large.models import MILLION_ROWS, MODELS
from experiments.bench.page import LARGE, write_results
from experiments.bench.posteriordb.commands import is_installed
from experiments.common.experiment import AbstractExperiment
from experiments.common.options import check_counts, check_out, split_names
from experiments.common.progress import run_all
from quell.cli.common import Seed, output_console

_JUDGED_WITHIN = 600
"""Seconds for the ELBOs of a run, off its clock."""

DEFAULT_MODELS = ("bradley-terry", "crossed", "occupancy", "polls", "horseshoe", "households")


@dataclasses.dataclass(frozen=True)
class LargeResult:
    """One run.

    Attributes:
        record: its facts, the seconds of its looks and their ELBOs.
        looks: the file of its Gaussians, as bytes.
    """

    record: dict[str, Any]
    looks: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """The Gaussians; none of a run that failed."""
        if not self.looks.size:
            return {}
        with np.load(io.BytesIO(self.looks.tobytes())) as found:
            return {name: found[name] for name in found.files}


@dataclasses.dataclass(frozen=True)
class LargeExperiment(AbstractExperiment[LargeResult]):
    """One model and one method with one setting in a fresh process, and a second one that finds the ELBOs.

    Attributes:
        model: one of `MODELS`.
        method: one of `METHODS`.
        setting: of the method, as JSON.
        limit: seconds for methods that go on for as long as they may.
        timeout: seconds after which the process is killed.
        seed: of the fit.
    """

    result_type: ClassVar[type] = LargeResult
    model: str
    method: str
    setting: str
    limit: int
    timeout: int
    seed: int

    @property
    def name(self) -> str:
        told = "".join(f" {name} {value:g}" for name, value in json.loads(self.setting).items())
        return f"{self.model} {self.method}{told}"

    @property
    def seconds(self) -> float:
        return 15.0 + self.limit * json.loads(self.setting).get("share", 0.5)

    def run(self) -> LargeResult:
        record: dict[str, Any] = {"model": self.model, "method": self.method, "setting": json.loads(self.setting)}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "looks.npz"
            options = ["--out", str(path), "--setting", self.setting, "--seconds", str(self.limit)]
            fit = ["run", self.model, self.method, *options, "--seed", str(self.seed)]
            told = _line_of(fit, self.timeout, os.environ)
            if path.exists():
                with np.load(path) as found:
                    told["seconds"] = [round(float(at), 2) for at in found["seconds"]]
                if self.method != REFERENCE:
                    on_host = {**os.environ, "JAX_PLATFORMS": "cpu"}
                    told |= _line_of(["judge", self.model, str(path)], _JUDGED_WITHIN, on_host)
            looks = path.read_bytes() if path.exists() else b""
        return LargeResult(record | told, np.frombuffer(looks, np.uint8))


def _line_of(arguments: list[str], timeout: int, environment: Any) -> dict[str, Any]:
    """The line of JSON that a process prints, or why there is none."""
    command = [sys.executable, "-m", f"experiments.bench.large.{arguments[0]}", *arguments[1:]]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"status": f"not finished in {timeout} s"}
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        return {"status": f"exit code {done.returncode}", "error": last}
    return json.loads(done.stdout.splitlines()[-1])


def large(
    models: Annotated[str, typer.Option(help=f"Of {', '.join(MODELS)}.")] = ",".join(DEFAULT_MODELS),
    methods: Annotated[str, typer.Option(help=f"Of {', '.join(METHODS)}.")] = ",".join(DEFAULTS),
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("bench"),
    seconds: Annotated[int, typer.Option(help="Of methods that go on for as long as they may.")] = 60,
    timeout: Annotated[int, typer.Option(help="Seconds after which a run is given up.")] = 1200,
    seed: Seed = 0,
) -> None:
    """ELBO, seconds, memory and errors on large models, one fresh process per run."""
    names = split_names("model", models, list(MODELS))
    wanted = split_names("method", methods, list(METHODS))
    check_counts(seconds=seconds, timeout=timeout)
    chosen = [name for name in wanted if is_installed(name, load)]
    if not chosen:
        raise typer.Exit(2)
    check_out(out)
    experiments = [
        LargeExperiment(name, method, json.dumps(setting), seconds, timeout, seed)
        for name in names
        for method in chosen
        if name in MILLION_ROWS or not method.endswith("-rows")
        for setting in METHODS[method][1]
    ]
    results = run_all(experiments, out, num_workers=1)
    records = with_errors(results)
    written = write_results(LARGE, records, out)
    console = output_console()
    for name in names:
        console.print(render(name, [record for record in records if record["model"] == name]))
    console.print(f"Written to {' and '.join(map(str, written))}")


def with_errors(results: list[LargeResult]) -> list[dict[str, Any]]:
    """The records, with errors against NUTS where its chains agree."""
    references = {
        result.record["model"]: result.arrays()
        for result in results
        if result.record["method"] == REFERENCE and result.record.get("largest_rhat", np.inf) < LARGEST_RHAT
    }
    records = []
    for result in results:
        record, reference, found = result.record, references.get(result.record["model"]), result.arrays()
        if reference and found and record["method"] != REFERENCE:
            record = {**record, "errors": moment_errors(found, reference)}
        records.append(record)
    return records


def render(name: str, records: list[dict[str, Any]]) -> Table:
    """A row for each method."""
    table = Table(title=name)
    heads = ("method", "best ELBO", "after s", "s to near the best", "MB", "status", "mean error", "sd error")
    for head in heads:
        table.add_column(head, justify="left" if head in ("method", "status") else "right")
    for row in compare(records):
        errors = row["errors"] or {}
        texts = [_text(row[key], digits) for key, digits in (("elbo", 2), ("seconds", 1), ("near", 1), ("peak_mb", 0))]
        of_sd = errors.get("response", errors.get("sd_median"))
        table.add_row(row["method"], *texts, row["status"], _text(errors.get("mean_rms"), 3), _text(of_sd, 3))
    return table


def _text(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"
