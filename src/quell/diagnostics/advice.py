# SPDX-License-Identifier: Apache-2.0
"""Advice on a fit, as pure functions of its diagnostics."""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from quell.combine import Rule
from quell.core.estimate import Estimate, mean_of
from quell.diagnostics.contribution import Contributions
from quell.diagnostics.khat import Khat
from quell.fit.status import Status

_ENOUGH_STEPS = 50
_NOTICEABLE = 0.1
_CHEAP = 0.05
_COSTLY = 0.2
_WORTH_IT = 0.9
_OFTEN = 0.01


class Level(enum.Enum):
    """How urgent a piece of advice is, the most urgent first."""

    ACT = "do this"
    NOTE = "to know"
    GOOD = "good"


class Advice(NamedTuple):
    """One or two sentences for the reader of a report; text in backticks is code."""

    level: Level
    text: str


def advise_end(status: Status) -> list[Advice]:
    """On the status of the fit."""
    levels = {Status.CONVERGED: Level.GOOD, Status.DIVERGED: Level.ACT, Status.NOT_CONVERGED: Level.ACT}
    return [] if status is Status.COMPLETED else [Advice(levels.get(status, Level.NOTE), status.value)]


def advise_skipped(num_skipped: int, num_steps: int) -> list[Advice]:
    """On skipped steps."""
    if not num_skipped:
        return []
    level = Level.ACT if num_skipped > _OFTEN * num_steps else Level.NOTE
    were = "step was" if num_skipped == 1 else "steps were"
    text = (
        f"{num_skipped:,} of {num_steps:,} {were} skipped because the parameters would not be finite. Lower the "
        "learning rate, or clip with `optax.chain(optax.clip_by_global_norm(1.0), optimizer)`."
    )
    return [Advice(level, text)]


def advise_dropped(names: Sequence[str], counts: Sequence[int], num_steps: int) -> list[Advice]:
    """On variates that were not finite."""
    dropped = [(name, count) for name, count in zip(names, counts, strict=True) if count]
    if not dropped:
        return []
    level = Level.ACT if max(count for _, count in dropped) > _OFTEN * num_steps else Level.NOTE
    listed = ", ".join(f"{name} at {count:,}" for name, count in dropped)
    text = f"Variates were not finite and dropped at some of the {num_steps:,} steps: {listed}."
    remedy = f" To avoid this, {_remove([name for name, _ in dropped])}" if level is Level.ACT else ""
    return [Advice(level, text + remedy)]


def advise_trend(elbo: Float[np.ndarray, "step"]) -> list[Advice]:
    """Whether the ELBO still rises: the last fifth of the steps against the fifth before."""
    if elbo.size < _ENOUGH_STEPS:
        return [Advice(Level.NOTE, f"{elbo.size} steps are too few to see a trend of the ELBO.")]
    fifth = elbo.size // 5
    late, early = mean_of(elbo[-fifth:]), mean_of(elbo[-2 * fifth : -fifth])
    rise = Estimate(late.value - early.value, math.hypot(late.standard_error, early.standard_error))
    if not math.isfinite(rise.value):
        return [Advice(Level.NOTE, "Some estimates of the ELBO are not finite, so its trend is unknown.")]
    if abs(rise.value) <= max(3.0 * rise.standard_error, _NOTICEABLE):
        return [Advice(Level.GOOD, "The ELBO has levelled off, to within its noise.")]
    if rise.value > 0:
        text = f"The ELBO still rises, by {rise} nats over the last fifth of steps: take more, `steps={2 * elbo.size}`."
        return [Advice(Level.ACT, text)]
    text = f"The ELBO falls, by {-rise.value:.3g} nats over the last fifth of steps: lower the learning rate."
    return [Advice(Level.ACT, text)]


def advise_variance(ratio: Estimate, num_variates: int, rule: Rule, *, reason: str | None = None) -> list[Advice]:
    """On the variance of the gradient, relative to the base gradient.

    Args:
        ratio: of the variances, base over combined.
        num_variates: number of active variates.
        rule: of their weights.
        reason: of an automatic choice.
    """
    if not num_variates and reason is not None:
        return [Advice(Level.GOOD, reason)]
    if not num_variates:
        text = "No variates were used. The default of `variates` chooses some that suit the problem."
        return [Advice(Level.NOTE, text)]
    if not math.isfinite(ratio.value):
        return [Advice(Level.NOTE, "The variance of the gradient is not finite at the final parameters.")]
    if ratio.value >= 1.2:
        return [Advice(Level.GOOD, f"The variates lower the variance of the gradient {_times(ratio.value)}.")]
    if ratio.value >= 0.95:
        text = "The variates hardly lower the variance. `quell.catalogue(model, family)` lists others for this problem."
        return [Advice(Level.NOTE, text)]
    stronger = dataclasses.replace(rule, v0=10.0 * (rule.v0 or Rule().v0))
    text = (
        f"With the variates the variance is {_times(1.0 / ratio.value)} higher: their weights are not learned yet. "
        f"Take more steps, or shrink the weights more with `rule=quell.{stronger}`."
    )
    return [Advice(Level.ACT, text)]


def advise_weights(combined: Estimate, best: Estimate) -> list[Advice]:
    """On weights that are far from the best."""
    if not (math.isfinite(combined.value) and best.value > 0 and combined.value > 1.5 * best.value):
        return []
    text = (
        f"At the best weights the variance would be {_times(combined.value / best.value)} lower than at the current "
        "ones. Try another `rule=quell.Rule(decay=..., v0=...)`: a smaller `v0` shrinks the weights less, a larger "
        "`decay` averages over fewer steps."
    )
    return [Advice(Level.NOTE, text)]


def advise_variates(found: Contributions) -> list[Advice]:
    """On variates that cost more than they contribute."""
    idle = found.dispensable
    advice = []
    if idle.names and not idle.cost < _CHEAP:
        time = "" if math.isnan(idle.cost) else f" and a step takes {percent(idle.cost)} less time"
        grows = percent(max(idle.growth.value - 1.0, 0.0))
        text = f"Without {_listed(idle.names)} the variance grows by {grows}{time}: {_remove(idle.names)}"
        advice.append(Advice(Level.ACT if idle.cost >= _COSTLY else Level.NOTE, text))
    for variate in found.variates:
        # More steps in the same time would lower the variance more than the variate; not if one of them is NaN.
        is_costly = variate.growth.value * (1.0 - variate.cost) < _WORTH_IT
        if is_costly and variate.name not in idle.names:
            text = (
                f"Without {variate.name} the variance grows {variate.growth.value:.2f} times and a step takes "
                f"{percent(variate.cost)} less time: for a lower variance in the same time {_remove([variate.name])}"
            )
            advice.append(Advice(Level.NOTE, text))
    return advice


def advise_khat(khat: Khat) -> list[Advice]:
    """On how far the fitted distribution can be trusted."""
    level = Level.GOOD if khat.is_good else Level.ACT
    if not math.isfinite(khat.value):
        return [Advice(level, khat.advice)]
    return [Advice(level, f"k-hat {khat.value:.2f}: {khat.advice[0].lower()}{khat.advice[1:]}")]


def percent(share: float) -> str:
    """A fraction as a percentage with at most two digits."""
    digits = 0 if share >= 0.095 or share < 0.0005 else 1
    return "less than 0.1%" if 0.0 < share < 0.0005 else f"{100 * share:.{digits}f}%"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 9.5 else f"{ratio:.1f} times"


def _listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _remove(names: Sequence[str]) -> str:
    them = "it" if len(names) == 1 else "them"
    kept = f"[v for v in result.gradient.variates if v.name not in {sorted(names)!r}]"
    return f"remove {them} with `variates={kept}`."
