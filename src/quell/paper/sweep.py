# SPDX-License-Identifier: Apache-2.0
"""Runs over data sets, ensembles and learning rates: what the paper's Table 1 and figures 2 and 3 show."""

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
"""Ensembles in the order of the paper's Table 1."""

LEARNING_RATES = {"ionosphere": 0.4, "ionosphere-full": 0.4, "australian": 0.4, "sonar": 0.2}
"""The largest rates for which one of the paper's estimators converged (its Table 1)."""

FACTORS = tuple(2.0**k for k in (-5, -4, -3, -2, -1, -0.5, 0, 0.5, 1, 2, 3))
"""Learning rates as multiples of the one in Table 1: from very slow to divergence."""

SHOWN = (2.0**-2, 1.0)
"""The two multiples that figure 2 shows by themselves."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """One data set and ensemble at all learning rates.

    Attributes:
        dataset: name of the data set.
        num_data: its number of rows.
        variates: name of the ensemble.
        rates: learning rates.
        steps: taken by each run.
        curves: exact ELBO along each run; NaN where it left the finite numbers.
        optimum: the best ELBO that the family can reach.
        seconds: time taken, compilation included.
    """

    dataset: str
    num_data: int
    variates: str
    rates: list[float]
    steps: int
    curves: Float[np.ndarray, "rate run record"]
    optimum: float
    seconds: float

    @property
    def iterations(self) -> Float[np.ndarray, "record"]:
        """Iteration of each record."""
        return np.arange(self.curves.shape[2]) * float(record_interval(self.steps))

    @property
    def median(self) -> Float[np.ndarray, "rate record"]:
        """Median over the runs; minus infinity where most of them left the finite numbers."""
        return np.median(np.nan_to_num(self.curves, nan=-np.inf), axis=1)

    @property
    def envelope(self) -> Float[np.ndarray, "record"]:
        """For each iteration, the median at the learning rate that is best there."""
        return self.median.max(axis=0)

    def as_json(self) -> dict[str, Any]:
        """One entry of `figure2.json` and `figure3.json`; what is not finite becomes null."""
        final = self.curves[:, :, -1]
        return {
            "dataset": self.dataset,
            "variates": self.variates,
            "rates": self.rates,
            "runs": self.curves.shape[1],
            "steps": self.steps,
            "optimum": self.optimum,
            "iterations": self.iterations.tolist(),
            "median": _nullable(self.median),
            "envelope": _nullable(self.envelope),
            "final_mean": [
                _nullable(np.mean(row[np.isfinite(row)])) if np.isfinite(row).any() else None for row in final
            ],
            "final_median": _nullable(self.median[:, -1]),
            "runs_not_finite": [int((~np.isfinite(row)).sum()) for row in final],
            "seconds": round(self.seconds, 3),
        }


class _Job(NamedTuple):
    dataset: Dataset
    column: str
    factors: tuple[float, ...]
    num_runs: int
    num_steps: int
    seed: int


def run_sweep(
    datasets: Sequence[Dataset],
    columns: Sequence[str] = COLUMNS,
    *,
    factors: Sequence[float] = FACTORS,
    num_runs: int = 10,
    num_steps: int = protocol.STEPS,
    seed: int = 0,
    num_workers: int = 1,
    on_cell: Callable[[Sweep], None] = lambda sweep: None,
) -> list[Sweep]:
    """Run every ensemble on every data set; all learning rates and runs of a pair are one compiled program.

    Args:
        datasets: by name in `LEARNING_RATES`.
        columns: names of ensembles.
        factors: learning rates, as multiples of the data set's.
        num_runs: for each learning rate; run k of every ensemble and rate sees the same draws.
        num_steps: a run.
        seed: of all runs.
        num_workers: processes that share the work; see `quell.paper.workers.run_jobs`.
        on_cell: sees each pair as it is done.
    """
    check_count("runs", num_runs)
    check_count("steps", num_steps)
    jobs = [_Job(data, column, tuple(factors), num_runs, num_steps, seed) for data in datasets for column in columns]
    order = sorted(range(len(jobs)), key=lambda k: _size(jobs[k]), reverse=True)
    sweeps: dict[int, Sweep] = {}
    for number, sweep in run_jobs(_run, [jobs[k] for k in order], num_workers=num_workers):
        sweeps[order[number]] = sweep
        on_cell(sweep)
    return [sweeps[k] for k in range(len(jobs))]


def _size(job: _Job) -> int:
    return job.dataset.features.shape[1] ** 2 * (1 + len(variates(job.column)))


def _run(job: _Job) -> Sweep:
    began = time.perf_counter()
    rates = [LEARNING_RATES[job.dataset.name] * factor for factor in job.factors]
    curves = protocol.elbo_curves(
        protocol.paper_gradient(protocol.paper_problem(job.dataset), job.column),
        learning_rates=rates,
        num_runs=job.num_runs,
        num_steps=job.num_steps,
        record_every=record_interval(job.num_steps),
        seed=job.seed,
    )
    best = optimum(job.dataset)
    seconds = time.perf_counter() - began
    data = job.dataset
    return Sweep(data.name, data.num_data, job.column, rates, job.num_steps, curves, best, seconds)


def record_interval(num_steps: int) -> int:
    """Steps between two records: the largest divisor of the steps that gives at least fifty records."""
    most = max(1, num_steps // 50)
    return max(k for k in range(1, most + 1) if num_steps % k == 0)


def _nullable(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return [_nullable(value) for value in values]
    return float(values) if np.isfinite(values) else None
