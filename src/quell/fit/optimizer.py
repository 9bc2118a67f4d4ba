# SPDX-License-Identifier: Apache-2.0
"""The optimiser that a fit takes where none is given, and how many steps move."""

import functools

import optax

from quell.evaluation import Problem
from quell.fit.automatic import SETTLED
from quell.fit.choice import BaseName, Choice
from quell.fit.natural_gradient import has_natural_gradient, natural_gradient

EXACT_KL = 100.0
"""Nats that a step of an exact fit may go: far enough for a start from far away, near enough to come back from."""

EXACT_KL_A_DATUM = 0.01
"""The same for each datum, where there are many: a step of this many moves predictors by 0.14 in root mean square, over
the square root of a datum's curvature, and over moves below one a log-likelihood is near its quadratic."""

EXACT_KL_A_COORDINATE = 0.1
"""The same for each coordinate, where there are thousands: a step moves each by half its scale."""

SECOND_ORDER_KL = 20.0
"""The same where Hessians are taken at latents."""

ANNEALED_RATE = 0.3
"""Where there are many optima, the rate of steps falls from this one over the fit, however noisy they are."""

ANNEALED_SCALE_RATE = 0.5
"""The rate of the scale there, over that of the location, because its gradient has more noise: optima are better."""

LEARNING_STEPS = 10
"""First steps of an automatic fit that learn weights only."""


def default_optimizer(
    problem: Problem, steps: int, first: BaseName, *, anneals: bool = False
) -> optax.GradientTransformation:
    """Natural-gradient steps for a Gaussian family, Adam for others.

    Args:
        problem: model and family.
        steps: of the fit; a rate that falls does so over those that move.
        first: the gradient that it begins with: the less noise that has, the longer steps may be.
        anneals: whether the rate of natural-gradient steps falls over the fit too. The state of one that does fits one
            that does not.
    """
    if not has_natural_gradient(problem.family):
        return _adam(moving_steps(steps))
    if anneals:
        until = SETTLED + moving_steps(steps - SETTLED)
        return natural_gradient(problem, _falling(ANNEALED_RATE, until), scale_rate=ANNEALED_SCALE_RATE)
    if first == "exact":
        by_size = EXACT_KL_A_DATUM * problem.model.num_data, EXACT_KL_A_COORDINATE * problem.model.dim
        return natural_gradient(problem, momentum=0.0, max_kl=max(EXACT_KL, *by_size))
    return natural_gradient(problem, max_kl=SECOND_ORDER_KL) if first == "second order" else natural_gradient(problem)


def optimizer_for(problem: Problem, steps: int, choice: Choice | None) -> optax.GradientTransformation:
    """The default for what was chosen; `None` for variates that were given."""
    if choice is None:
        return default_optimizer(problem, steps, "sampled")
    return default_optimizer(problem, steps, choice.first, anneals=choice.anneals)


def moving_steps(steps: int) -> int:
    """How many steps of a fit move, at least: few cannot be spared for learning weights."""
    return steps - LEARNING_STEPS if steps > 2 * LEARNING_STEPS else steps


@functools.cache
def _adam(steps: int) -> optax.GradientTransformation:
    """One object for each number of steps, so that a second fit finds the program that the first compiled."""
    return optax.adam(_falling(0.05, steps))


@functools.cache
def _falling(rate: float, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(rate, steps)
