# SPDX-License-Identifier: Apache-2.0
"""Trials: settings of a method, run on one problem with one seed by the search."""

import dataclasses
import math
import time

import jax
import numpy as np

from experiments.bench.clock import TARGETS, Goal, TimedRun, Timing, time_run, warm_up
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import AbstractRunner, Setting

SEARCH_SEED = 0

_SLACK = 1.2
"""A run is stopped at this many times the best time so far: a near tie is still seen."""


def median(values: list[float]) -> float:
    """The median, with the upper of two middle values, so that it is infinite when fewer than half arrive."""
    return float(np.sort(values)[len(values) // 2])


@dataclasses.dataclass(frozen=True)
class Trial:
    """A setting with its runs.

    Attributes:
        runner: the program.
        setting: of its axes.
        compile_s: seconds of compiling.
        runs: one per seed.
        is_final: whether all seeds were run, none of them that of the search.
    """

    runner: AbstractRunner
    setting: Setting
    compile_s: float
    runs: tuple[TimedRun, ...]
    is_final: bool

    @property
    def text(self) -> str:
        """For the table."""
        return self.runner.text(self.setting)

    def score(self, optimum: float, nats: float = TARGETS[-1]) -> tuple[float, ...]:
        """Median time to a target, then to a tenth of a nat, then the gap at the end: smaller is better."""
        gap = median([optimum - run.elbos[-1] for run in self.runs])
        return (self.seconds_to(optimum, nats), self.seconds_to(optimum, TARGETS[-1]), gap)

    def seconds_to(self, optimum: float, nats: float) -> float:
        """Median time over the seeds; infinite when fewer than half arrive."""
        return median([run.seconds_to(optimum, nats) for run in self.runs])


class Trials:
    """Runs settings of a method's programs, and keeps the best so far.

    Args:
        bench: the problem.
        goal: of its runs; where they may pass its optimum, the best ELBO seen replaces it.
    """

    def __init__(self, bench: BenchProblem, goal: Goal) -> None:
        """Nothing is run yet."""
        self.bench, self.goal, self.optimum = bench, goal, goal.optimum
        self.spent = 0.0  # seconds, without compilations
        self._timings: dict[AbstractRunner, Timing] = {}
        self._seen: dict[tuple[AbstractRunner, frozenset], tuple[Trial, float]] = {}

    @property
    def all(self) -> list[Trial]:
        """All settings, each with its longest run."""
        return [one for one, _ in self._seen.values()]

    def ranked(self, nats: float) -> list[Trial]:
        """All settings, the soonest within some nats first."""
        return sorted(self.all, key=lambda one: one.score(self.optimum, nats))

    def best(self, nats: float) -> float:
        """The least time to within some nats; infinite where none has arrived."""
        return min((one.seconds_to(self.optimum, nats) for one in self.all), default=math.inf)

    def limit(self, nats: float) -> float:
        """Seconds after which a run cannot be the soonest within some nats."""
        return min(self.bench.limit, _SLACK * self.best(nats))

    def has_started(self, runner: AbstractRunner) -> bool:
        """Whether a program has been compiled."""
        return runner in self._timings

    def step_seconds(self, runner: AbstractRunner) -> float:
        """Seconds per step of a program; the first call compiles it."""
        if runner not in self._timings:
            first = {name: axis.values[axis.first] for name, axis in runner.axes.items()}
            self._timings[runner] = warm_up(runner, jax.random.key(SEARCH_SEED), self.bench.start, first)
        return self._timings[runner].step_s

    def is_known(self, runner: AbstractRunner, setting: Setting, limit: float) -> bool:
        """Whether a run of that many seconds would add nothing: an earlier one was as long, or ended by itself."""
        found = self._seen.get(_key(runner, setting))
        return found is not None and (found[1] >= limit or found[0].runs[0].seconds[-1] < found[1])

    def run(self, runner: AbstractRunner, setting: Setting, limit: float, nats: float = TARGETS[-1]) -> Trial:
        """Run a setting, until it is clear that it will not be the soonest within some nats."""
        self.step_seconds(runner)
        limit = min(limit, self.limit(nats))
        key = _key(runner, setting)
        if not self.is_known(runner, setting, limit):
            began = time.perf_counter()
            run = self.one(runner, setting, SEARCH_SEED, limit)
            self.spent += time.perf_counter() - began
            self._seen[key] = (Trial(runner, setting, self._timings[runner].compile_s, (run,), is_final=False), limit)
            if self.goal.beyond:
                self.optimum = max(self.optimum, *run.elbos)
        return self._seen[key][0]

    def one(self, runner: AbstractRunner, setting: Setting, seed: int, limit: float) -> TimedRun:
        """One timed run."""
        self.step_seconds(runner)
        state = runner.start(jax.random.key(seed), self.bench.start, setting)
        most, start_s = runner.most_steps(setting), self._timings[runner].start_s
        return time_run(runner, state, self.goal, limit=limit, most_steps=most, start_s=start_s)


def _key(runner: AbstractRunner, setting: Setting) -> tuple[AbstractRunner, frozenset]:
    return runner, frozenset(setting.items())
