# SPDX-License-Identifier: Apache-2.0
"""The search for a method's best settings: a race, a climb for each target, then the best again with other seeds."""

import dataclasses
import math
from collections.abc import Sequence

from experiments.bench.climb import climb
from experiments.bench.clock import TARGETS
from experiments.bench.race import race
from experiments.bench.runner import AbstractRunner
from experiments.bench.trial import SEARCH_SEED, Trials, Tried

_RACE = 0.7
"""The race's part of the budget; the climbs have the rest."""

_FINALISTS = 2


def search(trials: Trials, runners: Sequence[AbstractRunner], *, budget: float, num_seeds: int) -> list[Tried]:
    """All settings tried; the finalists first, each group with the best first.

    Args:
        trials: of one method on one problem.
        runners: the method's programs.
        budget: seconds of the search; compilations and the finalists' runs come on top.
        num_seeds: runs of a finalist.
    """
    race(trials, runners, seconds=_RACE * budget)
    for number, nats in enumerate(TARGETS):
        climb(trials, nats, seconds=(budget - trials.spent) / (len(TARGETS) - number))
    chosen = {one.text: one for nats in TARGETS for one in _finalists(trials, nats)}
    finalists = sorted(
        (_final(trials, one, num_seeds) for one in chosen.values()), key=lambda one: one.score(trials.optimum)
    )
    return finalists + [one for one in trials.ranked(TARGETS[-1]) if one.text not in chosen]


def _finalists(trials: Trials, nats: float) -> list[Tried]:
    """Two that have arrived, or the best one."""
    ranked = trials.ranked(nats)
    arrived = [one for one in ranked if math.isfinite(one.seconds_to(trials.optimum, nats))]
    return arrived[:_FINALISTS] or ranked[:1]


def _final(trials: Trials, tried: Tried, num_seeds: int) -> Tried:
    seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + num_seeds)
    runs = tuple(trials.one(tried.runner, tried.setting, seed, trials.bench.limit) for seed in seeds)
    return dataclasses.replace(tried, runs=runs, is_final=True)
