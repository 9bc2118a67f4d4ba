# SPDX-License-Identifier: Apache-2.0
"""The benchmark's experiments: the reference ELBO of a problem, and the search for a method's best settings on it."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

from experiments.bench.clock import TARGETS, Goal, TimedRun
from experiments.bench.elbo import elbo_of, elbo_seconds
from experiments.bench.methods import own_methods
from experiments.bench.peers import Peer
from experiments.bench.problems import BenchProblem, make_problem
from experiments.bench.reference import Reference, find_reference
from experiments.bench.search import search
from experiments.bench.trial import Trial, Trials, median
from experiments.common.experiment import AbstractExperiment

_OWN_SHARE = 1 / 3
"""Of the peers' budget: our methods have a program or two each, theirs four."""

_BEYOND = 3.0
"""Nats above a reference that is not the exact optimum at which a run is stopped."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One setting of one method on one problem.

    Attributes:
        problem: name.
        method: name.
        setting: label of the setting.
        compile_s: seconds of compiling.
        runs: one per seed.
        is_final: whether these are the seeds of the comparison, and not the one of the search.
        cold_s: seconds of a whole run in a new process; `None` for those of compiling and of stepping.
    """

    problem: str
    method: str
    setting: str
    compile_s: float
    runs: tuple[TimedRun, ...]
    is_final: bool
    cold_s: float | None = None

    def cold_seconds_to(self, optimum: float, nats: float) -> float:
        """From the end of the imports; of a fit that ends by itself, to its end."""
        warm = self.seconds_to(optimum, nats)
        return warm if math.isinf(warm) else self.compile_s + warm if self.cold_s is None else self.cold_s

    def seconds_to(self, optimum: float, nats: float) -> float:
        """Median over the seeds; infinite when fewer than half arrive."""
        return median([run.seconds_to(optimum, nats) for run in self.runs])

    def final_gap(self, optimum: float) -> float:
        """Median over the seeds of the gap at the end."""
        return median([optimum - run.elbos[-1] for run in self.runs])

    def row(self, optimum: float) -> dict[str, Any]:
        """One entry of `rows` in `bench.json`."""
        times = {f"seconds_to_{nats:g}_nat": _or_none(self.seconds_to(optimum, nats)) for nats in TARGETS}
        return {
            "problem": self.problem,
            "method": self.method,
            "setting": self.setting,
            "us_per_step": round(median([run.us_per_step for run in self.runs]), 1),
            "compile_s": round(self.compile_s, 2),
            **times,
            **{f"cold_seconds_to_{nats:g}_nat": _or_none(self.cold_seconds_to(optimum, nats)) for nats in TARGETS},
            "final_gap": _or_none(self.final_gap(optimum)),
            "seeds": len(self.runs),
            "is_final": self.is_final,
        }


@dataclasses.dataclass(frozen=True)
class Effort:
    """How thorough the benchmark is.

    Attributes:
        seeds: runs of the best settings.
        budget: seconds of a peer's search on a problem; our methods have a third of it.
        quick: few settings.
    """

    seeds: int
    budget: int
    quick: bool


@dataclasses.dataclass(frozen=True)
class ReferenceExperiment(AbstractExperiment[Reference]):
    """The ELBO that the runs of a problem are compared with.

    Attributes:
        problem: name.
        data_dir: folder of data that are not shipped.
    """

    result_type: ClassVar[type] = Reference
    problem: str
    data_dir: str | None

    @property
    def name(self) -> str:
        return f"{self.problem} reference"

    @property
    def seconds(self) -> float:
        return 20.0

    def run(self) -> Reference:
        return find_reference(problem_of(self.problem, self.data_dir))


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """All settings of a method that were tried on a problem.

    Attributes:
        settings: fields of an `Outcome` each, the best setting first.
    """

    settings: list[dict[str, Any]]

    def outcomes(self) -> list[Outcome]:
        """The settings with their runs."""
        found = []
        for fields in self.settings:
            runs = [TimedRun(**{name: tuple(values) for name, values in run.items()}) for run in fields["runs"]]
            found.append(Outcome(**{**fields, "runs": tuple(runs)}))
        return found


@dataclasses.dataclass(frozen=True)
class MethodExperiment(AbstractExperiment[MethodResult]):
    """The search for a method's best settings on a problem, and their runs.

    Attributes:
        problem: name.
        data_dir: folder of data that are not shipped.
        method: name.
        peer: the library that the method belongs to; `None` for ours.
        optimum: at which runs stop.
        effort: how thorough the search is.
    """

    result_type: ClassVar[type] = MethodResult
    problem: str
    data_dir: str | None
    method: str
    peer: Peer | None
    optimum: float
    effort: Effort

    @property
    def name(self) -> str:
        return f"{self.problem} {self.method}"

    @property
    def seconds(self) -> float:
        return 20.0

    def run(self) -> MethodResult:
        bench = problem_of(self.problem, self.data_dir)
        quick = self.effort.quick
        methods = own_methods(bench, quick=quick) if self.peer is None else self.peer.methods(bench, quick)
        method = next(method for method in methods if method.name == self.method)
        # Where the optimum is only the best known, a run may find a better one.
        beyond = 0.0 if bench.is_exact or quick else _BEYOND
        goal = Goal(functools.partial(elbo_of, bench), self.optimum, beyond, elbo_seconds(bench))
        budget = self.effort.budget * (_OWN_SHARE if self.peer is None else 1.0)
        found = search(Trials(bench, goal), method.make(), budget=budget, num_seeds=self.effort.seeds)
        cold_s = None if method.cold_seconds is None else method.cold_seconds(self.problem, self.data_dir)
        return MethodResult([self._fields(trial, cold_s) for trial in found])

    def _fields(self, trial: Trial, cold_s: float | None) -> dict[str, Any]:
        return dataclasses.asdict(
            Outcome(self.problem, self.method, trial.text, trial.compile_s, trial.runs, trial.is_final, cold_s)
        )


@functools.lru_cache(maxsize=1)
def problem_of(name: str, data_dir: str | None) -> BenchProblem:
    """A problem by name; the latest is cached, since several experiments in a row use it."""
    return make_problem(name, data_dir=data_dir)


def _or_none(value: float) -> float | None:
    """A number for JSON, which has no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
