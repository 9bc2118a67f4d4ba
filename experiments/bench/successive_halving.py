# SPDX-License-Identifier: Apache-2.0
"""Successive halving: all settings run for a short time, the best of them longer, and so on."""

import dataclasses
import itertools
import math
import random
from collections.abc import Sequence

from experiments.bench.clock import TARGETS
from experiments.bench.runner import AbstractRunner, Setting
from experiments.bench.trial import Trials

ROUNDS = (1 / 64, 1 / 16, 1 / 4, 1.0)
"""Seconds of a run, as parts of the limit."""

_FEW = 3
_KEPT = 1 / 8
_FILLED = 0.9


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A program with its setting, except for the length of the schedule, which depends on the time of a round.

    Attributes:
        runner: the program.
        chosen: pairs of names and values.
        is_constant: whether the rate never falls.
    """

    runner: AbstractRunner
    chosen: tuple[tuple[str, float | int], ...]
    is_constant: bool

    def setting(self, step_seconds: float, seconds: float) -> Setting:
        """With the longest schedule that ends in time: one that is cut off is ranked before its rate has decayed."""
        chosen = dict(self.chosen)
        if "length" not in self.runner.axes:
            return chosen
        lengths = [length for length in self.runner.axes["length"].values if math.isinf(length) == self.is_constant]
        fitting = [length for length in lengths if length * step_seconds <= _FILLED * seconds]
        return chosen | {"length": max(fitting, default=min(lengths))}

    def with_lower_rate(self) -> "Candidate":
        """The next lower rate, which suits a longer run better; itself where there is none."""
        chosen = dict(self.chosen)
        if "rate" in chosen:
            lower = [rate for rate in self.runner.axes["rate"].values if rate < chosen["rate"]]
            chosen["rate"] = max(lower, default=chosen["rate"])
        return dataclasses.replace(self, chosen=tuple(chosen.items()))


def successive_halving(trials: Trials, runners: Sequence[AbstractRunner], *, seconds: float) -> None:
    """Rounds of longer and longer runs, with fewer and fewer settings.

    After each round the best eighth goes on, and the best setting of each program that has several, since low variance
    pays late; each with its next lower rate. A schedule fills the time of its round, so that all are ranked at its end,
    by the gap there. The search ends when a setting has reached the target within its round.

    Args:
        trials: that run the settings.
        runners: the programs.
        seconds: for all rounds, divided equally; the worst candidates that a round has no time for are left out, but
            one setting of each program is run in any case.
    """
    candidates, end = candidates_of(runners), trials.spent + seconds
    for number, part in enumerate(ROUNDS):
        if len(candidates) <= _FEW and part < 1.0:
            continue
        until = trials.spent + (end - trials.spent) / (len(ROUNDS) - number)
        candidates = _round(trials, candidates, part * trials.bench.limit, until)
        if trials.best(TARGETS[-1]) <= part * trials.bench.limit:
            return


def candidates_of(runners: Sequence[AbstractRunner]) -> list[Candidate]:
    """All combinations, in a fixed random order."""
    found = []
    for runner in runners:
        axes = {name: axis.values for name, axis in runner.axes.items() if name != "length"}
        kinds = {math.isinf(length) for length in runner.axes["length"].values} if "length" in runner.axes else {False}
        for values in itertools.product(*axes.values()):
            found += [Candidate(runner, tuple(zip(axes, values, strict=True)), kind) for kind in sorted(kinds)]
    random.Random(0).shuffle(found)
    return found


def _round(trials: Trials, candidates: list[Candidate], limit: float, until: float) -> list[Candidate]:
    """Run the candidates while there is time; returns those that go on, the best first."""
    found = {}
    for candidate in candidates:
        if found and trials.spent >= until and trials.has_started(candidate.runner):
            continue
        setting = candidate.setting(trials.step_seconds(candidate.runner), limit)
        found[candidate] = trials.run(candidate.runner, setting, limit)
    ranked = sorted(found, key=lambda candidate: found[candidate].score(trials.optimum))
    number = max(_FEW, math.ceil(_KEPT * len(ranked)))
    firsts = {candidate.runner: candidate for candidate in reversed(ranked) if candidate.runner.axes}
    kept = [
        candidate
        for place, candidate in enumerate(ranked)
        if place < number or candidate is firsts.get(candidate.runner)
    ]
    return list(dict.fromkeys(one for candidate in kept for one in (candidate, candidate.with_lower_rate())))
