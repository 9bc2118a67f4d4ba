# SPDX-License-Identifier: Apache-2.0
"""`variates="auto"`: the gradient that is predicted to converge soonest on this machine."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell.combine import Rule
from quell.combine.select import Costs, Option, options
from quell.estimators import BonnetPrice, ClosedForm
from quell.estimators.smoothness import has_no_kinks
from quell.evaluation import Problem, Sampler
from quell.fit.checkpoint_file import CheckpointError
from quell.fit.choice import BaseName, Choice, Way, describe, trials_of
from quell.fit.natural_gradient import has_natural_gradient
from quell.fit.natural_length import natural_sq_norm
from quell.fit.scout import Scout, Seen
from quell.fit.warm_start import WarmStart
from quell.gradient import BaseGradient, Gradient, GradientState, candidate_variates, default_base, first_active
from quell.terms import Prior, Variational

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

LARGEST_SECOND_ORDER = 100
"""With more coordinates than this, a Hessian a step is not tried."""

SETTLED = 24
"""After as many steps of second order it is looked whether their noise is small."""

SETTLED_NATS = 4.0
"""Where a step seems to gain more than this by noise alone, the density is far from a Gaussian."""

SETTLED_LOOKS = 9
"""Gradients of which the median is taken."""

LAST_STEPS = 3
"""Where each of these seems to gain less than half of that, noise and all, no other gradient is looked at."""

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
    left to choose. Otherwise a fit begins with what is good by rule: Hessians at latents, where coordinates and data
    are few, the density is known to have no kinks, and a look after the first steps shows little noise; else gradients
    at latents and variates. Where the fit turns out to be long enough, trial runs at the current parameters give the
    moments of all candidates, from which the noise of every subset follows, and the time of a step. The least product
    of the two is taken. The moments go on into the fit; its draws are others, so that nothing is biased.

    Args:
        problem: model and family.
        sampler: as it was given; by default it is chosen.
        base: as it was given.
        rule: as it was given.
        natural: whether steps follow the natural gradient.
        key: of the fit; several keys for several fits, which share one choice by rule.
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
        key: Key[Array, "*fit"],
    ) -> None:
        """Nothing is run yet."""
        self.problem, self.rule, self.natural, self.num_fits = problem, rule, natural, key.size
        are_free = sampler is None and base is None
        self.has_closed_form = are_free and is_exact_for(problem)
        self.may_be_exact = self.has_closed_form and (natural or problem.model.num_data <= LARGEST_EXACT)
        self.samples = SAMPLES if sampler is None else (1,)
        self.sampler = sampler or default_sampler
        variates = () if self.may_be_exact else candidate_variates(problem, self.sampler)
        self.sampled = Gradient(problem, variates, base=base or default_base(problem), sampler=self.sampler, rule=rule)
        self.second_order = None
        can_change = are_free and natural and not self.may_be_exact and key.ndim == 0
        if can_change and self.sampler.batch_size is None:
            self.second_order = second_order_gradient(problem, rule)
        self._look_key, *keys = jax.random.split(jax.random.fold_in(key if key.ndim == 0 else key[0], SCOUT_NUMBER), 3)
        self.scouts: dict[BaseName, Scout] = {"sampled": Scout(self.sampled, keys[0])}
        if self.second_order is not None:
            self.scouts["second order"] = Scout(self.second_order, keys[1])
        self._costs: dict[BaseName, Costs] = {}
        self._gradients: dict[tuple[BaseName, int, tuple[bool, ...]], Gradient] = {}

    def first(self) -> Tuned:
        """Choose before the first step, by rule: a trial would take longer than most fits."""
        if self.may_be_exact:
            reason = "Every term has a closed form on all data: the gradient is exact, and there is no noise to remove."
            return self.restore(Choice("exact", (), 1, reason + self._begins, first="exact"))
        if self.second_order is not None:
            reason = "By rule, before anything is measured: Hessians at latents, since coordinates and data are few."
            none = (False,) * len(self.sampled.variates)
            return self.restore(Choice("second order", none, 1, reason, first="second order"))
        are_worth = self.natural or self.sampler.batch_size is not None or not self.problem.family.transports
        active = first_active(self.sampled.variates) if are_worth else self._landing
        return self.restore(self._named("sampled", active, "By rule, before anything is measured", first="sampled"))

    @property
    def _landing(self) -> tuple[bool, ...]:
        """The cheapest variates: on all data a quadratic costs more than the samples that are as quiet."""
        return tuple(isinstance(variate.term, Variational) for variate in self.sampled.variates)

    def settle(self, params: PyTree, state: GradientState, choice: Choice, sq_norms: Sequence[float]) -> Tuned | None:
        """After the first steps of second order, the sampled base where they are too noisy; else `None`.

        The cheapest variate comes with it: quadratics would be as far from the density as the Hessians were.

        Args:
            params: where the fit stands.
            state: of its gradient, which has used no variate yet.
            choice: that it goes by.
            sq_norms: of the gradients of the last steps, in the rule's metric. They are not looked at where that is not
                the natural one, or where not every step takes them.
        """
        if self.second_order is None or choice.base != "second order":
            return None
        # On average a step's whole gain is at least that of its noise.
        are_gains = self.rule.metric == "natural" and self.rule.every == 1
        gains = [0.5 * sq_norm for sq_norm in sq_norms] if are_gains else [math.inf]
        if all(gain < 0.5 * SETTLED_NATS for gain in gains):
            return None
        if float(_median_noise(self.second_order, params, self._look_key)) < SETTLED_NATS:
            return None
        reason = "Hessians at latents turned out to be noisy, because the density is far from a Gaussian"
        named = self._named("sampled", self._landing, reason, first=choice.first)
        tuned = self.restore(dataclasses.replace(named, anneals=True))
        return tuned._replace(state=GradientState(self.sampled.init_moments(params), state.variates))

    def _named(self, base: BaseName, active: tuple[bool, ...], reason: str, *, first: BaseName) -> Choice:
        names = [name for name, used in zip(self.sampled.names, active, strict=True) if used]
        text = f"{reason}: {' + '.join(['base', *names])}.{self._begins}"
        return Choice(base, active, 1, text, first=first)

    @property
    def _begins(self) -> str:
        return (
            "" if self.rough is None else f" It begins with a walk to the optimum of {self.rough.num_rows} random data."
        )

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
        fresh = self.sampled.init(params)
        kept = tuple(
            old if used else new for old, new, used in zip(state.variates, fresh.variates, choice.active, strict=True)
        )
        seen = self.scouts["sampled"].look(params, GradientState(state.moments, kept))
        floor = QUIET_NATS if self.natural and self.rule.metric == "natural" else seen.mean_sq
        found = self._ways("sampled", params, seen, floor, also=_members(choice.active))
        if self.second_order is not None:
            other = self.scouts["second order"].look(params, self.second_order.init(params))
            found += self._ways("second order", params, other, floor)
        found.sort(key=lambda way: way.option.effort)
        now = next(way for way in found if self._is(way, choice))
        best = found[0] if found[0].option.effort < WORTH * now.option.effort else now
        seconds = time.perf_counter() - began + choice.seconds
        new = self._choice(found, best, choice, is_kept=best is now, seconds=seconds)
        return Tuned(new, self._gradient(new), seen.state)

    @property
    def rough(self) -> WarmStart | None:
        """How a fit of many data with a closed form begins."""
        walks = self.has_closed_form and has_natural_gradient(self.problem.family)
        return WarmStart.of(self.problem, num_fits=self.num_fits) if walks else None

    @property
    def num_trials(self) -> int:
        """Programs that trial runs have to compile: about as many times the fit's own."""
        return sum(len(scout.gradient.variates) + 3 for scout in self.scouts.values())

    def still_until(self, choice: Choice, learning: int) -> int:
        """The step up to which parameters wait for weights to be learned.

        A natural-gradient step is too long to be noisy, and Adam remembers the noise of its first ones for thousands.
        """
        if choice.base != "sampled" or not any(first_active(self.sampled.variates)):
            return 0
        return learning + (SETTLED if choice.first == "second order" else 0)

    def restore(self, choice: Choice) -> Tuned:
        """What an earlier choice makes.

        Raises:
            CheckpointError: for a choice of another fit.
        """
        known = {"exact"} if self.may_be_exact else set(self.scouts)
        if choice.base not in known or len(choice.active) != len(self.sampled.variates):
            raise CheckpointError(
                f"The checkpoint holds a fit with the {choice.base} gradient and {len(choice.active)} candidates. This "
                f"fit has {len(self.sampled.variates)} and may use {', '.join(sorted(known))}. Give this fit a path of "
                "its own, or resume with the settings that the checkpoint was written with."
            )
        return Tuned(choice, self._gradient(choice), None)

    def _ways(self, base: BaseName, params: PyTree, seen: Seen, floor: float, also: tuple[int, ...] = ()) -> list[Way]:
        """What can be made of a base gradient, from trial runs of it; one set of variates is always among it."""
        scout = self.scouts[base]
        if base not in self._costs:
            self._costs[base] = scout.costs(params, seen.state)
        # Moments are those of one independent unit; a step averages over several.
        noise = (seen.joint - _corner(seen)) / scout.gradient.sampler.num_units
        found = options(noise, 0.0, self._costs[base], floor=floor, samples=self.samples, also=(also,))
        return [Way(base, option) for option in found]

    def _is(self, way: Way, choice: Choice) -> bool:
        chosen = (choice.base, choice.samples, choice.active)
        return (way.base, way.option.samples, _mask(way.option, len(choice.active))) == chosen

    def _choice(self, found: list[Way], best: Way, before: Choice, *, is_kept: bool, seconds: float) -> Choice:
        names = self.sampled.names
        judged = "none is predicted to converge much sooner than" if is_kept else "the soonest to converge should be"
        reason = f"Of {len(found)} gradients {judged} {describe(names, best)}.{self._begins}"
        active, samples = _mask(best.option, len(names)), best.option.samples
        chosen = best.base, active, samples, reason, trials_of(names, found), seconds
        return Choice(*chosen, before.first, before.anneals)

    def _gradient(self, choice: Choice) -> Gradient:
        if choice.exact:
            return Gradient(self.problem, base=EXACT, rule=self.rule)
        key = choice.base, choice.samples, choice.active
        if key not in self._gradients:  # its checks trace every variate
            chosen = self.scouts[choice.base].gradient
            more = dataclasses.replace(chosen.sampler, num_replicates=choice.samples * chosen.sampler.num_replicates)
            made = dataclasses.replace(self.sampled, base=chosen.base, sampler=more, active=choice.active)
            self._gradients[key] = made
        return self._gradients[key]


def is_exact_for(problem: Problem) -> bool:
    """Whether the closed form of every term is there, and exact: quadrature is not where a density has a kink."""
    model = problem.model
    if EXACT.refuses(problem) is not None:
        return False
    return model.predictor is None or model.predictor.has_exact_expectations or has_no_kinks(problem)


def second_order_gradient(problem: Problem, rule: Rule) -> Gradient | None:
    """Hessians at one latent and its mirror image, on all data; `None` where they are wrong, or cost too much."""
    prior = ClosedForm() if Prior().refuses_closed_form(problem) is None else BonnetPrice()
    base = BaseGradient(BonnetPrice(), prior, ClosedForm())
    if problem.model.dim > LARGEST_SECOND_ORDER or base.refuses(problem) is not None or not has_no_kinks(problem):
        return None
    return Gradient(problem, base=base, sampler=Sampler(), rule=dataclasses.replace(rule, prior=None))


@eqx.filter_jit
def _median_noise(gradient: Gradient, params: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """Nats that a step seems to gain by noise alone: of several draws, the middle distance from their mean."""
    state = gradient.init(params)
    grads = jax.lax.map(lambda one: gradient.update(one, params, state)[0], jax.random.split(key, SETTLED_LOOKS))
    steps = jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), grads)
    gains = jax.lax.map(lambda step: 0.5 * natural_sq_norm(gradient.problem, params, step), steps)
    return jnp.median(gains) * SETTLED_LOOKS / (SETTLED_LOOKS - 1)


def _members(active: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple(k for k, used in enumerate(active) if used)


def _mask(option: Option, num: int) -> tuple[bool, ...]:
    return tuple(k in option.members for k in range(num))


def _corner(seen: Seen):
    """The squared norm of the mean gradient is in the base gradient's moment only: variates have mean zero."""
    corner = 0.0 * seen.joint
    corner[0, 0] = min(seen.mean_sq, seen.joint[0, 0])
    return corner
