# SPDX-License-Identifier: Apache-2.0
"""`variates="auto"`: the rule that chooses the gradient of a fit."""

import dataclasses
import functools
import math
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell.combine import Rule
from quell.estimators import BonnetPrice, ClosedForm
from quell.estimators.smoothness import has_no_kinks
from quell.evaluation import Problem, Sampler
from quell.fit.checkpoint import CheckpointError
from quell.fit.choice import BaseName, Choice
from quell.fit.defaults import default_sampler
from quell.fit.natural_gradient import has_natural_gradient, natural_sq_norm
from quell.fit.warm_start import WarmStart
from quell.gradient import BaseGradient, Gradient, candidate_variates, default_base
from quell.terms import Prior, Variational
from quell.variates import ControlVariate

EXACT = BaseGradient(ClosedForm(full_data=True), ClosedForm(), ClosedForm())
"""No noise at all: the closed form of every term, on all data."""

LARGEST_EXACT = 20_000
"""With more data than this only natural-gradient steps, which are few, see all of them at each step."""

LARGEST_SECOND_ORDER = 100
"""With more coordinates than this, a Hessian per step costs too much."""

MOST_NOISE = 4.0
"""Nats that a Hessian-based step may seem to gain by noise alone; above it the density is far from Gaussian."""

NOISE_DRAWS = 9
"""Gradients of which the noise check takes the median."""

NOISE_WINDOW = 3
"""Where each of the last steps seems to gain less than half of `MOST_NOISE`, noise included, the check passes."""

NOISE_KEY_NUMBER = 2**32 - 1
"""Folded into the fit's key for the noise check; no step has this number."""


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
    """The gradient of a fit whose variates are not given, by rule.

    1. Where every term has a closed form on all data, and steps or data are few, the gradient is exact.
    2. Otherwise, where coordinates and data are few, the density is smooth and steps follow the natural gradient,
       Hessians at latents. After the first steps their noise is checked once. Where there is too much, the density is
       far from Gaussian: the fit goes on with sampled gradients and annealed steps.
    3. Otherwise sampled gradients with the default variates.

    The choice is a function of the model, the family, the options and the key: nothing is timed.

    Attributes:
        problem: model and family.
        sampler: as it was given; `None` for the default.
        base: as it was given; `None` for the default.
        rule: how weights are learned.
        natural: whether steps follow the natural gradient.
        key: of the fit; several keys for several fits, which share one choice and are never Hessian-based.
    """

    problem: Problem
    sampler: Sampler | None
    base: BaseGradient | None
    rule: Rule
    natural: bool
    key: Key[Array, "*fit"]

    def first_choice(self) -> Choice:
        """The choice before the first step."""
        if self._may_be_exact:
            reason = "Every term has a closed form on all data: the gradient is exact, and there is no noise to remove."
            return Choice("exact", (), reason + self._warm_start_text, first="exact")
        if self._second_order is not None:
            reason = "Hessians at latents, because coordinates and data are few and the density is smooth."
            return Choice("second order", (), reason, first="second order")
        # On all data a quadratic costs more than the samples that have as little variance.
        is_worth = self.natural or self._sampler.batch_size is not None or not self.problem.family.transports
        variates = self._candidates if is_worth else self._entropy_variates
        return self._sampled_choice(variates, "Sampled gradients", first="sampled")

    def gradient(self, choice: Choice) -> Gradient:
        """The gradient that a choice stands for.

        Raises:
            CheckpointError: for a choice that is not one of this fit.
        """
        if choice.exact and self._may_be_exact:
            return Gradient(self.problem, base=EXACT, rule=self.rule)
        if choice.base == "second order" and self._second_order is not None:
            return self._second_order
        variates = tuple(variate for variate in self._candidates if variate.name in choice.variates)
        if choice.base != "sampled" or self._may_be_exact or len(variates) < len(choice.variates):
            raise CheckpointError(
                f"The checkpoint must hold a gradient that this fit may use, got the {choice.base} gradient with "
                f"{' + '.join(choice.variates) or 'no variates'}; give this fit a path of its own, or resume with the "
                "settings that the checkpoint was written with."
            )
        base = self.base or default_base(self.problem)
        return Gradient(self.problem, variates, base=base, sampler=self._sampler, rule=self.rule)

    def after_noise_check(self, choice: Choice, params: PyTree, sq_norms: Sequence[float]) -> Choice | None:
        """Sampled gradients, where Hessian-based ones are too noisy; else `None`.

        Only the variate of the entropy comes with them: quadratics would be as far from the density as the Hessians.

        Args:
            choice: that the fit goes by.
            params: where the fit stands.
            sq_norms: of the gradients of the last steps, in the rule's metric. They are used only where that is the
                natural one and every step takes them.
        """
        if self._second_order is None or choice.base != "second order":
            return None
        # On average a step's whole gain is at least that of its noise.
        are_gains = self.rule.metric == "natural" and self.rule.every == 1
        gains = [0.5 * sq_norm for sq_norm in sq_norms] if are_gains else [math.inf]
        if all(gain < 0.5 * MOST_NOISE for gain in gains):
            return None
        key, _ = jax.random.split(jax.random.fold_in(self.key, NOISE_KEY_NUMBER))
        if float(median_noise(self._second_order, params, key)) < MOST_NOISE:
            return None
        reason = "Sampled gradients, because Hessians at latents are too noisy: the density is far from Gaussian"
        named = self._sampled_choice(self._entropy_variates, reason, first=choice.first)
        return dataclasses.replace(named, anneals=True)

    @functools.cached_property
    def warm_start(self) -> WarmStart | None:
        """How a fit of many data with a closed form begins."""
        can_start = self._has_closed_form and has_natural_gradient(self.problem.family)
        return WarmStart.of(self.problem, num_fits=self.key.size) if can_start else None

    @functools.cached_property
    def _has_closed_form(self) -> bool:
        return self.sampler is None and self.base is None and is_exact_for(self.problem)

    @property
    def _may_be_exact(self) -> bool:
        return self._has_closed_form and (self.natural or self.problem.model.num_data <= LARGEST_EXACT)

    @functools.cached_property
    def _second_order(self) -> Gradient | None:
        is_free = self.sampler is None and self.base is None and self.key.ndim == 0
        if not (is_free and self.natural) or self._may_be_exact or self._sampler.batch_size is not None:
            return None
        return second_order_gradient(self.problem, self.rule)

    @property
    def _sampler(self) -> Sampler:
        return self.sampler or default_sampler(self.problem.model, natural=self.natural)

    @functools.cached_property
    def _candidates(self) -> tuple[ControlVariate, ...]:
        return candidate_variates(self.problem, self._sampler)

    @property
    def _entropy_variates(self) -> tuple[ControlVariate, ...]:
        return tuple(variate for variate in self._candidates if isinstance(variate.term, Variational))

    def _sampled_choice(self, variates: Sequence[ControlVariate], reason: str, *, first: BaseName) -> Choice:
        names = tuple(variate.name for variate in variates)
        text = f"{reason}: {' + '.join(['base', *names])}.{self._warm_start_text}"
        return Choice("sampled", names, text, first=first)

    @property
    def _warm_start_text(self) -> str:
        return (
            ""
            if self.warm_start is None
            else f" It begins with a warm start on {self.warm_start.num_rows} random data."
        )


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
def median_noise(gradient: Gradient, params: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """Nats that a step seems to gain by noise alone: of several draws, the median distance from their mean."""
    state = gradient.init(params)
    grads = jax.lax.map(lambda one: gradient.update(one, params, state)[0], jax.random.split(key, NOISE_DRAWS))
    steps = jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), grads)
    gains = jax.lax.map(lambda step: 0.5 * natural_sq_norm(gradient.problem, params, step), steps)
    return jnp.median(gains) * NOISE_DRAWS / (NOISE_DRAWS - 1)
