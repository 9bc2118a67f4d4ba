# SPDX-License-Identifier: Apache-2.0
"""The paper's Table 1: the ELBO after 500 steps, by data set and ensemble."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from quell.checks import check_count
from quell.paper import protocol
from quell.paper.datasets import Dataset
from quell.paper.ensembles import variates
from quell.paper.optimum import optimum
from quell.paper.workers import run_jobs

COLUMNS = ("none", "S4", "S5", "S6", "S7", "c5", "c7")

LEARNING_RATES = {"ionosphere": 0.4, "ionosphere-full": 0.4, "australian": 0.4, "sonar": 0.2}
"""The largest rates for which one of the paper's estimators converged (its Table 1)."""

_IONOSPHERE = (-157.3, -112.5, -85.3, -85.3, -72.0, -110.1, -75.6)
_AUSTRALIAN = (-378.2, -357.2, -255.1, -255.0, -251.8, -259.4, -254.4)
_SONAR = (-442.4, -270.2, -149.1, -148.3, -117.1, -200.6, -120.2)
PAPER: dict[str, dict[str, float]] = {
    "ionosphere": dict(zip(COLUMNS, _IONOSPHERE, strict=True)),
    "australian": dict(zip(COLUMNS, _AUSTRALIAN, strict=True)),
    "sonar": dict(zip(COLUMNS, _SONAR, strict=True)),
}
"""The paper's own figures; it has none for all rows of ionosphere."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of the table.

    Attributes:
        dataset: name of the data set.
        num_data: its number of rows.
        learning_rate: of the runs.
        variates: name of the ensemble.
        steps: taken by each run.
        curves: exact ELBO along each run; the last column is the cell's result.
        optimum: the best ELBO that the family can reach.
        seconds: time for the cell, compilation included.
    """

    dataset: str
    num_data: int
    learning_rate: float
    variates: str
    steps: int
    curves: Float[np.ndarray, "run record"]
    optimum: float
    seconds: float

    @property
    def final(self) -> Float[np.ndarray, "run"]:
        """Final ELBO of each run that stayed finite."""
        last = self.curves[:, -1]
        return last[np.isfinite(last)]

    @property
    def mean(self) -> float:
        """Mean of the final ELBO; NaN if no run stayed finite."""
        return float(self.final.mean()) if self.final.size else float("nan")

    @property
    def stderr(self) -> float:
        """Standard error of the mean; NaN for fewer than two runs."""
        final = self.final
        return float(final.std(ddof=1) / np.sqrt(final.size)) if final.size > 1 else float("nan")

    @property
    def median(self) -> float:
        """Median of the final ELBO, which a run that diverged does not move."""
        last = np.nan_to_num(self.curves[:, -1], nan=-np.inf)
        return float(np.median(last))

    @property
    def paper(self) -> float | None:
        """The paper's figure, where it has one."""
        return PAPER.get(self.dataset, {}).get(self.variates)

    def as_row(self) -> dict[str, Any]:
        """The cell as a row of `table1.json`; what is not finite becomes null."""
        return {
            "dataset": self.dataset,
            "num_data": self.num_data,
            "learning_rate": self.learning_rate,
            "variates": self.variates,
            "runs": self.curves.shape[0],
            "runs_not_finite": int(self.curves.shape[0] - self.final.size),
            "steps": self.steps,
            "elbo_mean": _finite(self.mean),
            "elbo_stderr": _finite(self.stderr),
            "elbo_median": _finite(self.median),
            "optimum": self.optimum,
            "paper": self.paper,
            "seconds": round(self.seconds, 3),
        }


class _Job(NamedTuple):
    """What a worker needs to know to fill one cell."""

    dataset: Dataset
    column: str
    num_runs: int
    num_steps: int
    seed: int


def run_table1(
    datasets: Sequence[Dataset],
    columns: Sequence[str] = COLUMNS,
    *,
    num_runs: int = 50,
    num_steps: int = protocol.STEPS,
    seed: int = 0,
    num_workers: int = 1,
    on_cell: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Run the cells of Table 1, all runs of a cell in one compiled program.

    Args:
        datasets: rows of the table.
        columns: names of ensembles.
        num_runs: a cell.
        num_steps: a run.
        seed: run k of every cell sees the same draws.
        num_workers: processes that share the cells; see `quell.paper.workers.run_jobs`.
        on_cell: sees each cell as it is done.
    """
    check_count("runs", num_runs)
    check_count("steps", num_steps)
    jobs = [_Job(data, column, num_runs, num_steps, seed) for data in datasets for column in columns]
    order = sorted(range(len(jobs)), key=lambda k: _size(jobs[k]), reverse=True)
    cells: dict[int, Cell] = {}
    for number, cell in run_jobs(_run_cell, [jobs[k] for k in order], num_workers=num_workers):
        cells[order[number]] = cell
        on_cell(cell)
    return [cells[k] for k in range(len(jobs))]


def _size(job: _Job) -> float:
    return job.dataset.features.shape[1] ** 2 * (1 + len(variates(job.column)))


def _run_cell(job: _Job) -> Cell:
    began = time.perf_counter()
    problem = protocol.paper_problem(job.dataset)
    rate = LEARNING_RATES[job.dataset.name]
    curves = protocol.elbo_curves(
        protocol.paper_gradient(problem, job.column),
        learning_rates=[rate],
        num_runs=job.num_runs,
        num_steps=job.num_steps,
        record_every=record_interval(job.num_steps),
        seed=job.seed,
    )[0]
    return Cell(
        dataset=job.dataset.name,
        num_data=job.dataset.num_data,
        learning_rate=rate,
        variates=job.column,
        steps=job.num_steps,
        curves=curves,
        optimum=optimum(job.dataset),
        seconds=time.perf_counter() - began,
    )


def record_interval(num_steps: int) -> int:
    """Steps between two records: the largest divisor of the steps that gives at least fifty records."""
    most = max(1, num_steps // 50)
    return max(k for k in range(1, most + 1) if num_steps % k == 0)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
