# SPDX-License-Identifier: Apache-2.0
"""The search for a method's best setting: a climb along its axes with one seed, then the best again with others."""

import dataclasses
import math
import time

import jax
import numpy as np

from quell.bench.clock import TARGETS, Judge, Run, timed_run, warm_up
from quell.bench.problems import BenchProblem
from quell.bench.runner import AbstractRunner, Method, Setting

SEARCH_SEED = 0


@dataclasses.dataclass(frozen=True)
class Tried:
    """A setting with its runs.

    Attributes:
        runner: the program.
        setting: of its axes.
        compile_s: seconds of the program's first call.
        runs: one a seed.
        is_final: whether all seeds were run, none of them that of the search.
    """

    runner: AbstractRunner
    setting: Setting
    compile_s: float
    runs: tuple[Run, ...]
    is_final: bool

    @property
    def text(self) -> str:
        """For the table."""
        return self.runner.text(self.setting)

    def score(self, optimum: float) -> tuple[float, ...]:
        """Median time to a tenth of a nat, then the median of the gap at the end: smaller is better."""
        return (self.seconds_to(optimum, TARGETS[-1]), median([optimum - run.elbos[-1] for run in self.runs]))

    def seconds_to(self, optimum: float, nats: float) -> float:
        """Median time over the seeds; infinite when fewer than half arrive."""
        return median([run.seconds_to(optimum, nats) for run in self.runs])


def median(values: list[float]) -> float:
    """The median, with the upper of two middle values, so that it is infinite when fewer than half arrive."""
    return float(np.sort(values)[len(values) // 2])


@dataclasses.dataclass
class Search:
    """One method on one problem.

    Args:
        bench: the problem.
        judge: the ELBO of a Gaussian.
        optimum: that times are measured to.
        budget: seconds for the climbs: half for the program whose first setting is best, half of the rest for the next;
            compilations and the finalists' runs come on top.
        beyond: nats above the optimum that a run may go on to.
    """

    bench: BenchProblem
    judge: Judge
    optimum: float
    budget: float
    beyond: float = 0.0

    def run(self, method: Method, *, num_seeds: int) -> list[Tried]:
        """All settings tried; the finalists first, each group with the best first."""
        self._best = math.inf
        firsts = sorted((self._first(runner) for runner in method.make()), key=lambda one: one.score(self.optimum))
        tried, left = [], self.budget
        for first in firsts:
            self._left = 0.5 * left
            tried += self._climb(first)
            left -= 0.5 * left - self._left
        tried.sort(key=lambda one: one.score(self.optimum))
        soonest = min(tried, key=lambda one: (one.seconds_to(self.optimum, TARGETS[0]), one.score(self.optimum)))
        chosen = {one.text: one for one in (*tried[: self._num_finalists(tried)], soonest)}
        finalists = [self._final(one, num_seeds) for one in chosen.values()]
        finalists.sort(key=lambda one: one.score(self.optimum))
        names = {one.text for one in finalists}
        return finalists + [one for one in tried if one.text not in names]

    def _num_finalists(self, tried: list[Tried]) -> int:
        """Two where two have reached a tenth of a nat, else one."""
        reached = [one for one in tried if math.isfinite(one.seconds_to(self.optimum, TARGETS[-1]))]
        return min(max(1, len(reached)), 2)

    def _first(self, runner: AbstractRunner) -> Tried:
        """Compile a program and run its first setting."""
        at = _first_of(runner)
        compile_s = warm_up(runner, jax.random.key(SEARCH_SEED), self.bench.start, self._setting(runner, at))
        return self._try(runner, at, compile_s)

    def _climb(self, first: Tried) -> list[Tried]:
        """From the first setting, move to a better neighbour until there is none or the time is over."""
        runner, compile_s, at = first.runner, first.compile_s, _first_of(first.runner)
        seen = {at: first}
        waiting = self._neighbours(runner, at)
        while waiting and self._left > 0:
            there = waiting.pop(0)
            if there in seen:
                continue
            began = time.perf_counter()
            seen[there] = self._try(runner, there, compile_s)
            self._left -= time.perf_counter() - began
            if seen[there].score(self.optimum) < seen[at].score(self.optimum):
                ahead = tuple(2 * new - old for new, old in zip(there, at, strict=True))
                at = there
                waiting = [ahead] * self._is_inside(runner, ahead) + self._neighbours(runner, at)
        return list(seen.values())

    def _try(self, runner: AbstractRunner, at: tuple[int, ...], compile_s: float) -> Tried:
        setting = self._setting(runner, at)
        run = self._one(runner, setting, SEARCH_SEED, min(self.bench.limit, self._best))
        self._best = min(self._best, run.seconds_to(self.optimum, TARGETS[-1]))
        return Tried(runner, setting, compile_s, (run,), is_final=False)

    def _final(self, tried: Tried, num_seeds: int) -> Tried:
        seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + num_seeds)
        runs = tuple(self._one(tried.runner, tried.setting, seed, self.bench.limit) for seed in seeds)
        return dataclasses.replace(tried, runs=runs, is_final=True)

    def _one(self, runner: AbstractRunner, setting: Setting, seed: int, limit: float) -> Run:
        state = runner.start(jax.random.key(seed), self.bench.start, setting)
        most = runner.most_steps(setting)
        return timed_run(
            runner,
            state,
            self.judge,
            optimum=self.optimum,
            limit=limit,
            most_steps=most,
            beyond=self.beyond,
        )

    def _setting(self, runner: AbstractRunner, at: tuple[int, ...]) -> Setting:
        return {name: axis.values[k] for (name, axis), k in zip(runner.axes.items(), at, strict=True)}

    def _neighbours(self, runner: AbstractRunner, at: tuple[int, ...]) -> list[tuple[int, ...]]:
        moves = [(k, step) for k in range(len(at)) for step in (1, -1)]
        found = [tuple(v + step * (j == k) for j, v in enumerate(at)) for k, step in moves]
        return [there for there in found if self._is_inside(runner, there)]

    def _is_inside(self, runner: AbstractRunner, at: tuple[int, ...]) -> bool:
        return all(0 <= k < len(axis.values) for k, axis in zip(at, runner.axes.values(), strict=True))


def _first_of(runner: AbstractRunner) -> tuple[int, ...]:
    return tuple(axis.first for axis in runner.axes.values())
