# SPDX-License-Identifier: Apache-2.0
"""Advice in words: pure functions of the numbers of a fit."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from quell.combine import Rule
from quell.diagnostics.contribution import Contribution, Contributions
from quell.diagnostics.estimate import Estimate, mean_of
from quell.diagnostics.khat import Khat
from quell.fit.status import Status

ENOUGH_STEPS = 50
"""Fewer steps than this tell nothing about a trend."""

_NOTICEABLE = 0.1
_CHEAP = 0.05
_DEAR = 0.2
_WORTH_IT = 0.9
_OFTEN = 0.01


class Level(enum.Enum):
    """How much a piece of advice matters."""

    ACT = "do this"
    NOTE = "to know"
    GOOD = "good"


class Advice(NamedTuple):
    """One sentence or two for the reader of a report; what stands between backticks is code."""

    level: Level
    text: str


def advise_end(status: Status) -> list[Advice]:
    """How the fit ended."""
    levels = {Status.COMPLETED: None, Status.CONVERGED: Level.GOOD, Status.DIVERGED: Level.ACT}
    level = levels.get(status, Level.NOTE)
    return [Advice(level, status.value)] if level else []


def advise_skipped(num_skipped: int, num_steps: int) -> list[Advice]:
    """Steps that were not taken."""
    if not num_skipped:
        return []
    level = Level.ACT if num_skipped > _OFTEN * num_steps else Level.NOTE
    were = "step was" if num_skipped == 1 else "steps were"
    text = (
        f"{num_skipped:,} of {num_steps:,} {were} skipped because the parameters would not have been finite. Lower the "
        "learning rate, or clip with `optax.chain(optax.clip_by_global_norm(1.0), optimizer)`."
    )
    return [Advice(level, text)]


def advise_dropped(names: Sequence[str], counts: Sequence[int], num_steps: int) -> list[Advice]:
    """Variates that were not finite."""
    dropped = [(name, count) for name, count in zip(names, counts, strict=True) if count]
    if not dropped:
        return []
    level = Level.ACT if max(count for _, count in dropped) > _OFTEN * num_steps else Level.NOTE
    listed = ", ".join(f"{name} at {count:,}" for name, count in dropped)
    text = f"Not finite, and left out at some of the {num_steps:,} steps: {listed}."
    return [Advice(level, text + (_dropped_way_out(dropped) if level is Level.ACT else ""))]


def _dropped_way_out(dropped: Sequence[tuple[str, int]]) -> str:
    way_out = _leave_out([name for name, _ in dropped])
    return f" {way_out[0].upper()}{way_out[1:]}"


def advise_trend(elbo: Float[np.ndarray, "step"], *, is_exact: bool = False) -> list[Advice]:
    """Whether the ELBO still rises: the last fifth of the steps against the fifth before; one that is exact tells."""
    if is_exact:
        return []
    if elbo.size < ENOUGH_STEPS:
        return [Advice(Level.NOTE, f"{elbo.size} steps are too few to tell whether the ELBO still rises.")]
    rise = elbo_rise(elbo)
    if not math.isfinite(rise.value):
        return [Advice(Level.NOTE, "Some estimates of the ELBO are not finite, so that its trend is not known.")]
    if abs(rise.value) <= max(3.0 * rise.standard_error, _NOTICEABLE):
        return [Advice(Level.GOOD, "The ELBO has levelled off, as far as its noise lets us see.")]
    if rise.value > 0:
        text = f"The ELBO still rises, by {rise} nats over the last fifth: take more steps, `steps={2 * elbo.size}`."
        return [Advice(Level.ACT, text)]
    text = f"The ELBO falls, by {-rise.value:.3g} nats over the last fifth: lower the learning rate."
    return [Advice(Level.ACT, text)]


def elbo_rise(elbo: Float[np.ndarray, "step"]) -> Estimate:
    """Mean of the last fifth of the estimates less that of the fifth before; the estimates are independent."""
    fifth = max(2, elbo.size // 5)
    late, early = mean_of(elbo[-fifth:]), mean_of(elbo[-2 * fifth : -fifth])
    return Estimate(late.value - early.value, math.hypot(late.standard_error, early.standard_error))


def advise_noise(ratio: Estimate, num_variates: int, rule: Rule, *, reason: str | None = None) -> list[Advice]:
    """How much quieter the gradient is than the base gradient.

    Args:
        ratio: of the variances.
        num_variates: in use.
        rule: that their weights were learned by.
        reason: of an automatic choice.
    """
    if not num_variates and reason is not None:
        return [Advice(Level.GOOD, reason)]
    if not num_variates:
        text = "No variates were used. Leave `variates` out for those that suit the problem."
        return [Advice(Level.NOTE, text)]
    if not math.isfinite(ratio.value):
        return [Advice(Level.NOTE, "The variance of the gradient is not finite where the fit ended.")]
    if ratio.value >= 1.2:
        return [Advice(Level.GOOD, f"The gradient is {_times(ratio.value)} quieter than the base gradient.")]
    if ratio.value >= 0.95:
        text = "The variates remove hardly any noise. `quell.catalogue(model, family)` lists others for this problem."
        return [Advice(Level.NOTE, text)]
    warier = dataclasses.replace(rule, v0=10.0 * (rule.v0 or Rule().v0))
    text = (
        f"With the variates the gradient is {_times(1.0 / ratio.value)} noisier: their weights are not learned yet. "
        f"Take more steps, or trust the averages less with `rule=quell.{warier}`."
    )
    return [Advice(Level.ACT, text)]


def advise_weights(combined: Estimate, best: Estimate) -> list[Advice]:
    """Whether better weights would help."""
    if not (math.isfinite(combined.value) and best.value > 0 and combined.value > 1.5 * best.value):
        return []
    text = (
        f"At the best weights the variance would be {_times(combined.value / best.value)} smaller than at those in "
        "use. Let them follow the fit with another `rule=quell.Rule(decay=..., v0=...)`: a smaller `v0` trusts the "
        "averages more, a larger `decay` forgets faster."
    )
    return [Advice(Level.NOTE, text)]


def advise_variates(found: Contributions) -> list[Advice]:
    """Which variates are not worth their time."""
    idle = found.dispensable
    dear = [_advise_dear(v) for v in found.variates if v.name not in idle.names and _is_dear(v)]
    if not idle.names or idle.cost < _CHEAP:
        return dear
    time = "" if math.isnan(idle.cost) else f" and a step takes {percent(idle.cost)} less time"
    grows = percent(max(idle.growth.value - 1.0, 0.0))
    text = f"Without {_listed(idle.names)} the variance grows by {grows}{time}: {_leave_out(idle.names)}"
    return [Advice(Level.ACT if idle.cost >= _DEAR else Level.NOTE, text), *dear]


def _is_dear(variate: Contribution) -> bool:
    """Whether more steps in the same time would gain more than the variate does; NaN where nothing was measured."""
    return bool(variate.growth.value * (1.0 - variate.cost) < _WORTH_IT)


def _advise_dear(variate: Contribution) -> Advice:
    text = (
        f"Without {variate.name} the variance grows {variate.growth.value:.2f} times and a step takes "
        f"{percent(variate.cost)} less time: for the quieter average in the same time {_leave_out([variate.name])}"
    )
    return Advice(Level.NOTE, text)


def advise_khat(khat: Khat) -> list[Advice]:
    """How far the fitted distribution can be trusted."""
    level = Level.GOOD if khat.is_good else Level.ACT
    number = "" if not math.isfinite(khat.value) else f"k-hat {khat.value:.2f}: "
    return [Advice(level, number + (khat.advice if not number else khat.advice[0].lower() + khat.advice[1:]))]


def most_urgent_first(advice: Sequence[Advice]) -> list[Advice]:
    """What is to be done first, then what is to be known, then what is good."""
    order = list(Level)
    return sorted(advice, key=lambda one: order.index(one.level))


def percent(share: float) -> str:
    """A share with two digits at most."""
    digits = 0 if share >= 0.095 or share < 0.0005 else 1
    return "less than 0.1%" if 0.0 < share < 0.0005 else f"{100 * share:.{digits}f}%"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 9.5 else f"{ratio:.1f} times"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _leave_out(names: Sequence[str]) -> str:
    them = "it" if len(names) == 1 else "them"
    kept = f"[v for v in result.gradient.variates if v.name not in {sorted(names)!r}]"
    return f"leave {them} out with `variates={kept}`."
