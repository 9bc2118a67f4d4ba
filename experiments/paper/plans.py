# SPDX-License-Identifier: Apache-2.0
"""The experiments behind the table and each figure, in full or in the small version of `--quick`."""

from collections.abc import Sequence

from experiments.paper.figure1 import Figure1Experiment
from experiments.paper.figure4 import PanelExperiment, figure4_experiments
from experiments.paper.sweep import SweepExperiment, sweep_experiments
from experiments.paper.table1 import table1_experiments
from quell.paper import Dataset

_QUICK_COLUMNS = ("none", "S7")


def table1_plan(
    datasets: Sequence[Dataset], columns: Sequence[str], *, runs: int, steps: int, seed: int, quick: bool
) -> list[SweepExperiment]:
    """The table's experiments."""
    if quick:
        datasets, runs = datasets[:1], min(runs, 4)
        columns = [column for column in columns if column in _QUICK_COLUMNS] or columns[:1]
    return table1_experiments(datasets, columns, num_runs=runs, num_steps=steps, seed=seed)


def sweep_plan(datasets: Sequence[Dataset], *, runs: int, seed: int, quick: bool) -> list[SweepExperiment]:
    """The sweep over learning rates behind figures 2 and 3."""
    if quick:
        return sweep_experiments(datasets[:1], _QUICK_COLUMNS, num_runs=2, num_steps=100, seed=seed)
    return sweep_experiments(datasets, num_runs=runs, seed=seed)


def figure1_plan(dataset: Dataset, *, steps: int, seed: int, quick: bool) -> Figure1Experiment:
    """Figure 1's experiment."""
    if quick:
        return Figure1Experiment(dataset, num_steps=min(steps, 60), num_evaluations=500, seed=seed)
    return Figure1Experiment(dataset, num_steps=steps, seed=seed)


def figure4_plan(dataset: Dataset, *, repetitions: int, seed: int, quick: bool) -> list[PanelExperiment]:
    """Figure 4's experiments."""
    return figure4_experiments(dataset, repetitions=min(repetitions, 20) if quick else repetitions, seed=seed)
