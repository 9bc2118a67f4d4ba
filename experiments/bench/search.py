# SPDX-License-Identifier: Apache-2.0
"""The search for a method's best settings: successive halving, then a coordinate search for each target."""

import dataclasses
import math
from collections.abc import Sequence

from experiments.bench.clock import TARGETS
from experiments.bench.runner import AbstractRunner, Setting
from experiments.bench.successive_halving import successive_halving
from experiments.bench.trial import SEARCH_SEED, Trial, Trials

_HALVING_SHARE = 0.7
"""Share of the budget for successive halving; the coordinate searches have the rest."""

_FINALISTS = 2


def search(trials: Trials, runners: Sequence[AbstractRunner], *, budget: float, num_seeds: int) -> list[Trial]:
    """All settings that were tried; the finalists, run again with other seeds, come first.

    Args:
        trials: of one method on one problem.
        runners: the method's programs.
        budget: seconds of the search; compilations and the finalists' runs come on top.
        num_seeds: runs per finalist.
    """
    successive_halving(trials, runners, seconds=_HALVING_SHARE * budget)
    for number, nats in enumerate(TARGETS):
        coordinate_search(trials, nats, seconds=(budget - trials.spent) / (len(TARGETS) - number))
    chosen = {one.text: one for nats in TARGETS for one in _finalists(trials, nats)}
    finalists = sorted(
        (_final(trials, one, num_seeds) for one in chosen.values()), key=lambda one: one.score(trials.optimum)
    )
    return finalists + [one for one in trials.ranked(TARGETS[-1]) if one.text not in chosen]


def coordinate_search(trials: Trials, nats: float, *, seconds: float) -> None:
    """Try the neighbours of the best setting along each axis, until none is better.

    Args:
        trials: with some settings run already.
        nats: the target.
        seconds: for this search.
    """
    until = trials.spent + seconds
    while trials.spent < until:
        best = trials.ranked(nats)[0]
        fresh = [one for one in _neighbours(best) if not trials.is_known(best.runner, one, trials.limit(nats))]
        if not fresh:
            return
        trials.run(best.runner, fresh[0], trials.bench.limit, nats)


def _neighbours(trial: Trial) -> list[Setting]:
    """One step up or down an axis."""
    found = []
    for name, axis in trial.runner.axes.items():
        here = axis.values.index(trial.setting[name])
        found += [{**trial.setting, name: axis.values[k]} for k in (here + 1, here - 1) if 0 <= k < len(axis.values)]
    return found


def _finalists(trials: Trials, nats: float) -> list[Trial]:
    """Two that have reached the target, or the best one."""
    ranked = trials.ranked(nats)
    arrived = [one for one in ranked if math.isfinite(one.seconds_to(trials.optimum, nats))]
    return arrived[:_FINALISTS] or ranked[:1]


def _final(trials: Trials, trial: Trial, num_seeds: int) -> Trial:
    seeds = range(SEARCH_SEED + 1, SEARCH_SEED + 1 + num_seeds)
    runs = tuple(trials.one(trial.runner, trial.setting, seed, trials.bench.limit) for seed in seeds)
    return dataclasses.replace(trial, runs=runs, is_final=True)
