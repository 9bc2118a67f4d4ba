# SPDX-License-Identifier: Apache-2.0
"""The paper's Table 1: the ELBO after 500 steps, by data set and ensemble."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.common.json_value import json_value
from experiments.paper import protocol
from experiments.paper.sweep import COLUMNS, Sweep, SweepExperiment, sweep_experiments
from quell.paper.datasets import Dataset

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

    @classmethod
    def from_sweep(cls, sweep: Sweep) -> "Cell":
        """A sweep's first learning rate."""
        rate = float(sweep.rates[0])
        curves = sweep.curves[0]
        return cls(
            sweep.dataset, sweep.num_data, rate, sweep.variates, sweep.steps, curves, sweep.optimum, sweep.seconds
        )

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
            "elbo_mean": json_value(self.mean),
            "elbo_stderr": json_value(self.stderr),
            "elbo_median": json_value(self.median),
            "optimum": self.optimum,
            "paper": self.paper,
            "seconds": round(self.seconds, 3),
        }


def table1_experiments(
    datasets: Sequence[Dataset],
    columns: Sequence[str] = COLUMNS,
    *,
    num_runs: int = 50,
    num_steps: int = protocol.STEPS,
    seed: int = 0,
) -> list[SweepExperiment]:
    """The cells of Table 1: sweeps at the paper's learning rates alone."""
    return sweep_experiments(datasets, columns, factors=(1.0,), num_runs=num_runs, num_steps=num_steps, seed=seed)
