# SPDX-License-Identifier: Apache-2.0
"""Runs over data sets, ensembles and learning rates: what the paper's Table 1 and figures 2 and 3 show."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from experiments.common.experiment import AbstractExperiment
from experiments.common.json_value import json_value
from experiments.paper import protocol
from quell.paper.datasets import Dataset
from quell.paper.ensembles import variates

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
        curves: exact ELBO along each run; NaN where it is not finite.
        optimum: the best ELBO that the family can reach.
        seconds: time taken, compilation included.
    """

    dataset: str
    num_data: int
    variates: str
    rates: Float[np.ndarray, "rate"]
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
        """Median over the runs; minus infinity where most of them are not finite."""
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
            "rates": self.rates.tolist(),
            "runs": self.curves.shape[1],
            "steps": self.steps,
            "optimum": self.optimum,
            "iterations": self.iterations.tolist(),
            "median": json_value(self.median),
            "envelope": json_value(self.envelope),
            "final_mean": [
                json_value(np.mean(row[np.isfinite(row)])) if np.isfinite(row).any() else None for row in final
            ],
            "final_median": json_value(self.median[:, -1]),
            "runs_not_finite": [int((~np.isfinite(row)).sum()) for row in final],
            "seconds": round(self.seconds, 3),
        }


@dataclasses.dataclass(frozen=True)
class SweepExperiment(AbstractExperiment[Sweep]):
    """One data set and ensemble; all learning rates and runs are one compiled program.

    Attributes:
        dataset: by name in `LEARNING_RATES`.
        column: name of an ensemble.
        factors: learning rates, as multiples of the data set's.
        num_runs: for each learning rate; run k of every ensemble and rate sees the same draws.
        num_steps: per run.
        seed: of all runs.
    """

    result_type: ClassVar[type] = Sweep

    dataset: Dataset
    column: str
    factors: tuple[float, ...] = FACTORS
    num_runs: int = 10
    num_steps: int = protocol.STEPS
    seed: int = 0

    @property
    def name(self) -> str:
        kind = "table1" if self.factors == (1.0,) else "sweep"
        return f"{kind} {self.dataset.name} {self.column}"

    @property
    def seconds(self) -> float:
        names = [variate.name for variate in variates(self.column)]
        dim = self.dataset.features.shape[1]
        heavy = sum(name in {"c3", "c4", "c6"} for name in names)
        micros = 15 + 0.6 * dim + len(names) * (15 + 0.8 * dim) + heavy * 0.19 * dim**2
        return 4.0 + 0.8 * len(names) + 1e-6 * micros * self.num_runs * len(self.factors) * self.num_steps

    def run(self) -> Sweep:
        began = time.perf_counter()
        data = self.dataset
        rates = LEARNING_RATES[data.name] * np.array(self.factors)
        curves = protocol.elbo_curves(
            protocol.paper_gradient(protocol.paper_problem(data), self.column),
            learning_rates=rates.tolist(),
            num_runs=self.num_runs,
            num_steps=self.num_steps,
            record_every=record_interval(self.num_steps),
            seed=self.seed,
        )
        best = protocol.optimum(data)
        seconds = time.perf_counter() - began
        return Sweep(data.name, data.num_data, self.column, rates, self.num_steps, curves, best, seconds)


def sweep_experiments(
    datasets: Sequence[Dataset], columns: Sequence[str] = COLUMNS, **options: Any
) -> list[SweepExperiment]:
    """Every ensemble on every data set, with options of `SweepExperiment`."""
    return [SweepExperiment(data, column, **options) for data in datasets for column in columns]


def record_interval(num_steps: int) -> int:
    """Steps between two records: the largest divisor of the steps that gives at least fifty records."""
    most = max(1, num_steps // 50)
    return max(k for k in range(1, most + 1) if num_steps % k == 0)
