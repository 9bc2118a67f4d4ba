# SPDX-License-Identifier: Apache-2.0
"""Finished pieces of the benchmark, kept in a folder: a reference a problem, and a method on a problem."""

import dataclasses
import functools
import json
import math
from typing import Any, ClassVar

from experiments.bench.clock import TARGETS, Goal, Run
from experiments.bench.judge import elbo_of, seconds_of
from experiments.bench.methods import own_methods
from experiments.bench.peers import Peer
from experiments.bench.problems import BenchProblem, make_problem
from experiments.bench.reference import Reference, find_reference
from experiments.bench.search import search
from experiments.bench.trial import Trials, Tried, median
from experiments.paper.experiment import AbstractExperiment

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
        setting: in words.
        compile_s: seconds of compiling.
        runs: one a seed.
        is_final: whether these are the seeds of the comparison, and not the one of the search.
    """

    problem: str
    method: str
    setting: str
    compile_s: float
    runs: tuple[Run, ...]
    is_final: bool

    def seconds_to(self, optimum: float, nats: float) -> float:
        """Median over the seeds; infinite when fewer than half arrive."""
        return median([run.seconds_to(optimum, nats) for run in self.runs])

    def final_gap(self, optimum: float) -> float:
        """Median over the seeds of the gap at the end."""
        return median([optimum - run.elbos[-1] for run in self.runs])

    def row(self, optimum: float) -> dict[str, Any]:
        """For the report."""
        times = {f"seconds_to_{nats:g}_nat": _or_none(self.seconds_to(optimum, nats)) for nats in TARGETS}
        return {
            "problem": self.problem,
            "method": self.method,
            "setting": self.setting,
            "us_per_step": round(median([run.us_per_step for run in self.runs]), 1),
            "compile_s": round(self.compile_s, 2),
            **times,
            "final_gap": _or_none(self.final_gap(optimum)),
            "seeds": len(self.runs),
            "is_final": self.is_final,
        }


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        seeds: runs of the best settings.
        budget: seconds of a peer's search on a problem; our methods have a third of it.
        quick: few settings.
    """

    seeds: int
    budget: int
    quick: bool


@dataclasses.dataclass(frozen=True)
class Kept:
    """A result as text, for the store."""

    text: str


@dataclasses.dataclass(frozen=True)
class ReferencePiece(AbstractExperiment[Kept]):
    """The ELBO that a problem's runs are measured against."""

    result_type: ClassVar[type] = Kept
    problem: str
    data_dir: str | None

    @property
    def name(self) -> str:
        return f"{self.problem} reference"

    @property
    def seconds(self) -> float:
        return 20.0

    def run(self) -> Kept:
        return Kept(json.dumps(dataclasses.asdict(find_reference(problem_of(self.problem, self.data_dir)))))

    def read(self, kept: Kept) -> Reference:
        """The reference from its text."""
        return Reference(**json.loads(kept.text))


@dataclasses.dataclass(frozen=True)
class MethodPiece(AbstractExperiment[Kept]):
    """The search for a method's best setting on a problem, and its runs.

    Attributes:
        problem: name.
        data_dir: for the data that are not shipped.
        method: name.
        peer: whose method it is; `None` for ours.
        optimum: to stop at.
        effort: how much is tried.
    """

    result_type: ClassVar[type] = Kept
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

    def run(self) -> Kept:
        bench = problem_of(self.problem, self.data_dir)
        quick = self.effort.quick
        methods = own_methods(bench, quick=quick) if self.peer is None else self.peer.methods(bench, quick)
        method = next(method for method in methods if method.name == self.method)
        # Where the optimum is only the best known, a run may find a better one.
        beyond = 0.0 if bench.is_exact or quick else _BEYOND
        goal = Goal(functools.partial(elbo_of, bench), self.optimum, beyond, seconds_of(bench))
        budget = self.effort.budget * (_OWN_SHARE if self.peer is None else 1.0)
        found = search(Trials(bench, goal), method.make(), budget=budget, num_seeds=self.effort.seeds)
        return Kept(json.dumps([self._outcome(one) for one in found]))

    def _outcome(self, tried: Tried) -> dict[str, Any]:
        return dataclasses.asdict(
            Outcome(self.problem, self.method, tried.text, tried.compile_s, tried.runs, tried.is_final)
        )

    def read(self, kept: Kept) -> list[Outcome]:
        """The outcomes from their text, the best first."""
        outcomes = []
        for fields in json.loads(kept.text):
            runs = tuple(Run(**{name: tuple(values) for name, values in run.items()}) for run in fields.pop("runs"))
            outcomes.append(Outcome(runs=runs, **fields))
        return outcomes


@functools.lru_cache(maxsize=1)
def problem_of(name: str, data_dir: str | None) -> BenchProblem:
    """A problem by name; the latest is kept, since several pieces in a row ask for it."""
    return make_problem(name, data_dir=data_dir)


def _or_none(value: float) -> float | None:
    """A number for JSON, which has no infinity."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
