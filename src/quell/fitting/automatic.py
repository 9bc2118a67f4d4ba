# SPDX-License-Identifier: Apache-2.0
"""`variates="auto"`: the gradient that is predicted to converge soonest on this machine."""

import dataclasses
import time
from typing import NamedTuple

import jax
from jaxtyping import Array, Key, PyTree

from quell.combine import Rule
from quell.combine.select import Costs, Option, options
from quell.draw import Sampler
from quell.estimators import ClosedForm
from quell.fitting.choice import Choice, describe, trials_of
from quell.fitting.rough import RoughStart
from quell.fitting.scout import Scout, Seen
from quell.gradient import Gradient, GradientState
from quell.problem import Problem
from quell.variates import BaseGradient, candidate_variates, default_base, first_active

SAMPLES = (1, 2, 4, 8)
"""How many times the default samples may be taken, where no sampler was given."""

QUIET_NATS = 1.0
"""With natural-gradient steps, noise below this many nats gains nothing."""

WORTH = 0.8
"""Another gradient must be predicted to take less than this share of the time, or the fit goes on as it is."""

LARGEST_EXACT = 20_000
"""With more data than this only natural-gradient steps, which are few, see all of them each."""

EXACT = BaseGradient(ClosedForm(full_data=True), ClosedForm(), ClosedForm())
"""No noise at all: the closed form of every term, on all data."""

SCOUT_NUMBER = 2**32 - 1
"""Folded into the fit's key for the trial runs; no step has this number."""


class Tuned(NamedTuple):
    """A choice, made.

    Args:
        choice: what was chosen, and why.
        gradient: that it makes.
        state: of the gradient: moments and approximations as trial runs left them; `None` where there were none.
    """

    choice: Choice
    gradient: Gradient
    state: GradientState | None


class Tuner:
    """Chooses base gradient, variates and samples by measured time and measured noise.

    Where every term has a closed form on all data, and steps or data are few, the gradient has no noise, and nothing is
    left to choose. Otherwise a fit begins with variates that are good by rule. Where it turns out to be long enough,
    trial runs at the current parameters give the moments of all candidates, from which the noise of every subset
    follows, and the time of a step. The subset with the least product of the two is taken. The moments go on into the
    fit; its draws are others, so that nothing is biased.

    Args:
        problem: model and family.
        sampler: as it was given; by default it is chosen.
        base: as it was given.
        rule: as it was given.
        natural: whether steps follow the natural gradient.
        key: of the fit.
    """

    def __init__(
        self,
        problem: Problem,
        sampler: Sampler | None,
        base: BaseGradient | None,
        rule: Rule,
        *,
        default_sampler: Sampler,
        natural: bool,
        key: Key[Array, ""],
    ) -> None:
        """Nothing is run yet."""
        self.problem, self.rule, self.natural = problem, rule, natural
        are_few = natural or problem.model.num_data <= LARGEST_EXACT
        self.may_be_exact = sampler is None and base is None and are_few and EXACT.refuses(problem) is None
        self.samples = SAMPLES if sampler is None else (1,)
        self.sampler = sampler or default_sampler
        variates = () if self.may_be_exact else candidate_variates(problem, self.sampler)
        self.sampled = Gradient(problem, variates, base=base or default_base(problem), sampler=self.sampler, rule=rule)
        self.scout = Scout(self.sampled, jax.random.fold_in(key, SCOUT_NUMBER))
        self._costs: Costs | None = None

    def first(self) -> Tuned:
        """Choose before the first step, by rule: a trial would take longer than most fits."""
        if self.may_be_exact:
            reason = "Every term has a closed form on all data: the gradient is exact, and there is no noise to remove."
            if (rough := self.rough) is not None:
                reason += f" The fit starts near the optimum of {rough.num_rows} random data."
            return self.restore(Choice(exact=True, active=(), samples=1, reason=reason))
        active = first_active(self.sampled.variates)
        names = " + ".join(["base", *(n for n, used in zip(self.sampled.names, active, strict=True) if used)])
        return self.restore(Choice(False, active, 1, f"By rule, before anything is measured: {names}."))

    def again(self, params: PyTree, state: GradientState, choice: Choice) -> Tuned | None:
        """Choose where the fit stands, by trial runs; `None` where there is nothing to choose.

        Args:
            params: where the fit stands.
            state: of its gradient.
            choice: that it goes by now.
        """
        if choice.exact:
            return None
        began = time.perf_counter()
        fresh = self.sampled.init(params).variates
        kept = tuple(old if used else new for old, new, used in zip(state.variates, fresh, choice.active, strict=True))
        seen = self.scout.look(params, GradientState(state.moments, kept))
        self._costs = self._costs or self.scout.costs(params, seen.state)
        found = self._options(seen, also=tuple(k for k, used in enumerate(choice.active) if used))
        now = next(o for o in found if _mask(o, len(choice.active)) == choice.active and o.samples == choice.samples)
        best = found[0] if found[0].effort < WORTH * now.effort else now
        new = self._choice(found, best, is_kept=best is now, seconds=time.perf_counter() - began + choice.seconds)
        return Tuned(new, self._gradient(new), seen.state)

    @property
    def rough(self) -> RoughStart | None:
        """How an exact fit of many data begins."""
        return RoughStart.of(self.problem) if self.may_be_exact and self.natural else None

    @property
    def num_trials(self) -> int:
        """Programs that trial runs have to compile: about as many times the fit's own."""
        return len(self.sampled.variates) + 3

    def restore(self, choice: Choice) -> Tuned:
        """What an earlier choice makes."""
        return Tuned(choice, self._gradient(choice), None)

    def _options(self, seen: Seen, also: tuple[int, ...]) -> list[Option]:
        assert self._costs is not None
        num_units = self.sampled.sampler.num_units
        # Moments are those of one independent unit; a step averages over several.
        noise = (seen.joint - _corner(seen)) / num_units
        floor = QUIET_NATS if self.natural and self.rule.metric == "natural" else seen.mean_sq
        return options(noise, 0.0, self._costs, floor=floor, samples=self.samples, also=(also,))

    def _choice(self, found: list[Option], best: Option, *, is_kept: bool, seconds: float) -> Choice:
        names = self.sampled.names
        judged = "none is predicted to converge much sooner than" if is_kept else "the soonest to converge should be"
        reason = f"Of {len(found)} gradients {judged} {describe(names, best)}."
        return Choice(False, _mask(best, len(names)), best.samples, reason, trials_of(names, found), seconds)

    def _gradient(self, choice: Choice) -> Gradient:
        if choice.exact:
            return Gradient(self.problem, base=EXACT, rule=self.rule)
        more = dataclasses.replace(self.sampler, num_replicates=choice.samples * self.sampler.num_replicates)
        return dataclasses.replace(self.sampled, sampler=more, active=choice.active)


def _mask(option: Option, num: int) -> tuple[bool, ...]:
    return tuple(k in option.members for k in range(num))


def _corner(seen: Seen):
    """The squared norm of the mean gradient is in the base gradient's moment only: variates have mean zero."""
    corner = 0.0 * seen.joint
    corner[0, 0] = min(seen.mean_sq, seen.joint[0, 0])
    return corner
