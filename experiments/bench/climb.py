# SPDX-License-Identifier: Apache-2.0
"""From the best setting to a better neighbour, until there is none."""

from experiments.bench.runner import Setting
from experiments.bench.trial import Trials, Tried


def climb(trials: Trials, nats: float, *, seconds: float) -> None:
    """Try the neighbours of whichever setting is soonest within some nats, along each axis.

    Args:
        trials: with some settings run already.
        nats: the target.
        seconds: for the climb.
    """
    until = trials.spent + seconds
    while trials.spent < until:
        best = trials.ranked(nats)[0]
        fresh = [one for one in neighbours(best) if not trials.is_known(best.runner, one, trials.limit(nats))]
        if not fresh:
            return
        trials.run(best.runner, fresh[0], trials.bench.limit, nats)


def neighbours(tried: Tried) -> list[Setting]:
    """One step up or down an axis."""
    found = []
    for name, axis in tried.runner.axes.items():
        here = axis.values.index(tried.setting[name])
        found += [{**tried.setting, name: axis.values[k]} for k in (here + 1, here - 1) if 0 <= k < len(axis.values)]
    return found
