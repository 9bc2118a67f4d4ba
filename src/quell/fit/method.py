# SPDX-License-Identifier: Apache-2.0
"""`variates="auto"`: the rule that chooses the gradient of a fit."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from quell.combine import Rule
from quell.estimators import BonnetPrice, ClosedForm
from quell.estimators.smoothness import has_no_kinks
from quell.evaluation import Problem, Sampler
from quell.fit.choice import Choice
from quell.fit.defaults import default_rule, default_sampler
from quell.fit.natural_gradient import has_natural_gradient, natural_sq_norm
from quell.fit.options import FitOptions
from quell.fit.warm_start import warm_start_rows
from quell.gradient import BaseGradient, Gradient, candidate_variates, default_base
from quell.terms import Prior, Variational

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


def choose(
    options: FitOptions, problem: Problem, key: Key[Array, "*fit"], *, natural: bool, is_noisy: bool = False
) -> tuple[Gradient, Choice | None, int | None]:
    """The gradient of a fit; where its variates are not given, by rule.

    1. Where every term has a closed form on all data, and steps or data are few, the gradient is exact.
    2. Otherwise, where coordinates and data are few, the density is smooth and steps follow the natural gradient,
       Hessians at latents. After the first steps their noise is checked once. Where there is too much, the density is
       far from Gaussian: the fit goes on with sampled gradients and annealed steps. Only the variate of the entropy
       comes with them: quadratics would be as far from the density as the Hessians.
    3. Otherwise sampled gradients with the default variates.

    The choice is a function of the model, the family, the options and the key: nothing is timed.

    Args:
        options: of the fit.
        problem: model and family.
        key: of the fit; several keys for several fits, which share one choice and are never Hessian-based.
        natural: whether steps follow the natural gradient.
        is_noisy: whether Hessian-based steps turned out to be too noisy.

    Returns:
        The gradient with every default filled in, the record of the choice where there was one, and the number of rows
        of the warm start where there is one.
    """
    model, is_auto = problem.model, options.variates == "auto"
    rule = options.rule or default_rule(problem, natural=natural, is_auto=is_auto)
    sampler = options.sampler or default_sampler(model, natural=natural)
    is_free = is_auto and options.sampler is None and options.base is None
    has_closed_form = is_free and is_exact_for(problem)
    may_start = has_closed_form and has_natural_gradient(problem.family)
    rows = warm_start_rows(problem, num_fits=key.size) if may_start else None
    begins = "" if rows is None else f" It begins with a warm start on {rows} random data."
    if has_closed_form and (natural or model.num_data <= LARGEST_EXACT):
        reason = "Every term has a closed form on all data: the gradient is exact, and there is no noise to remove."
        return Gradient(problem, base=EXACT, rule=rule), Choice("exact", (), reason + begins), rows
    may_see_hessians = is_free and natural and key.ndim == 0 and sampler.batch_size is None and not is_noisy
    second_order = second_order_gradient(problem, rule) if may_see_hessians else None
    if second_order is not None:
        reason = "Hessians at latents, because coordinates and data are few and the density is smooth."
        return second_order, Choice("second order", (), reason), None
    base = options.base or default_base(problem)
    if not is_auto:
        return Gradient(problem, options.variates, base=base, sampler=sampler, rule=rule), None, None
    variates = candidate_variates(problem, sampler)
    # On all data a quadratic costs more than the samples that have as little variance.
    is_worth = natural or sampler.batch_size is not None or not problem.family.transports
    if is_noisy or not is_worth:
        variates = tuple(variate for variate in variates if isinstance(variate.term, Variational))
    names = tuple(variate.name for variate in variates)
    why = ", because Hessians at latents are too noisy: the density is far from Gaussian" if is_noisy else ""
    reason = f"Sampled gradients{why}: {' + '.join(['base', *names])}.{begins}"
    gradient = Gradient(problem, variates, base=base, sampler=sampler, rule=rule)
    return gradient, Choice("sampled", names, reason, anneals=is_noisy), rows


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


def is_too_noisy(gradient: Gradient, key: Key[Array, ""], params: PyTree, sq_norms: Sequence[float]) -> bool:
    """Whether Hessian-based steps seem to gain too much by noise alone.

    Args:
        gradient: Hessian-based.
        key: of the fit.
        params: where the fit stands.
        sq_norms: of the gradients of the last steps, in the rule's metric. Where that is the natural one and every step
            takes them, they are twice the gains of whole steps, which on average are at least those of their noise.
    """
    are_gains = gradient.rule.metric == "natural" and gradient.rule.every == 1
    if are_gains and all(0.5 * sq_norm < 0.5 * MOST_NOISE for sq_norm in sq_norms):
        return False
    own, _ = jax.random.split(jax.random.fold_in(key, NOISE_KEY_NUMBER))
    return not float(median_noise(gradient, params, own)) < MOST_NOISE


@eqx.filter_jit
def median_noise(gradient: Gradient, params: PyTree, key: Key[Array, ""]) -> Float[Array, ""]:
    """Nats that a step seems to gain by noise alone: of several draws, the median distance from their mean."""
    state = gradient.init(params)
    grads = jax.lax.map(lambda one: gradient.update(one, params, state)[0], jax.random.split(key, NOISE_DRAWS))
    steps = jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, axis=0), grads)
    gains = jax.lax.map(lambda step: 0.5 * natural_sq_norm(gradient.problem, params, step), steps)
    return jnp.median(gains) * NOISE_DRAWS / (NOISE_DRAWS - 1)
