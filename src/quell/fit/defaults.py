# SPDX-License-Identifier: Apache-2.0
"""Sampler, rule and optimiser of a fit where none are given, and how many of its steps warm up."""

import functools

import optax

from quell.combine import Rule
from quell.data.access import most_rows, on_disk
from quell.evaluation import Problem, Sampler
from quell.families import Capability
from quell.fit.choice import Choice
from quell.fit.natural_gradient import has_natural_gradient, natural_gradient

LARGEST_FULL = 2000
"""Up to this many data a step sees all of them."""

NATURAL_REPLICATES, FULL_REPLICATES = 10, 4
"""Of a natural-gradient step, and of another one that sees all data: on a few thousand rows four samples take little
longer than one."""

FLOW_REPLICATES = 64
"""Of a step of a flow: so many samples go through its networks in little more time than a few."""

FLOW_EVERY = 20
"""Steps of a flow between those that take inner products, which need a gradient of all parameters for each sample."""

DEFAULT_BATCH_SIZE = 100

DISK_SHARE = 8
"""The minibatches of a step on disk data take at most this share of the rows that fit in memory."""

PRIOR_STRENGTH = 1e-3
"""`v0` of a fit that chooses its variates, in the natural metric, and N times `v0` otherwise: near the optimum of N
data the gradient per datum has a squared norm of order 1/N, of which `v0` must stay a small part."""

EXACT_KL, EXACT_KL_PER_DATUM, EXACT_KL_PER_COORDINATE = 100.0, 0.01, 0.1
"""Trust-region radius (KL, in nats) of an exact fit, the largest of three. The first is far enough for a start from far
away, and near enough to return. The second moves predictors by 0.14 in root mean square, over the square root of a
datum's curvature: over moves below one a log-likelihood is near its quadratic. The third moves each coordinate by half
its scale."""

ANNEALED_RATE, ANNEALED_SCALE_RATE = 0.3, 0.5
"""Of natural-gradient steps where Newton steps gave up, as on networks: the rate falls from the first one over the fit,
however noisy its gradients are, so that it goes on moving among the many optima; the scale, whose gradient has more
noise, moves by the second times that."""

WARM_UP_STEPS = 10
"""First steps of a fit that chooses its variates, which learn weights and do not move."""


def default_sampler(problem: Problem, *, natural: bool) -> Sampler:
    """All data where they are few. Natural-gradient steps are few and long: they take more samples each, as flows do.

    A step never sees all data on disk. The default does not depend on the devices, so that any number of them gives the
    same fit.

    Args:
        problem: model and family.
        natural: whether steps follow the natural gradient.
    """
    model = problem.model
    is_on_disk = on_disk(model.data)
    sees_all = model.num_data <= LARGEST_FULL and not is_on_disk
    replicates = NATURAL_REPLICATES if natural else FULL_REPLICATES if sees_all else 1
    replicates = FLOW_REPLICATES if _is_flow(problem) else replicates
    if sees_all:
        return Sampler(replicates)
    most = max(1, most_rows(model.data) // (DISK_SHARE * replicates)) if is_on_disk else DEFAULT_BATCH_SIZE
    return Sampler(replicates, min(most, DEFAULT_BATCH_SIZE))


def default_rule(problem: Problem, *, natural: bool, is_auto: bool) -> Rule:
    """Moments in the natural metric for natural-gradient steps; else the paper's, and weaker where variates are chosen.

    Args:
        problem: model and family.
        natural: whether steps follow the natural gradient.
        is_auto: whether variates are chosen.
    """
    if natural and problem.family.refuses(Capability.NATURAL_METRIC) is None:
        return Rule(v0=PRIOR_STRENGTH, metric="natural")
    every = FLOW_EVERY if _is_flow(problem) else 1
    return Rule(v0=PRIOR_STRENGTH / problem.model.num_data, every=every) if is_auto else Rule(every=every)


def default_optimizer(
    problem: Problem, steps: int, *, exact: bool = False, anneals: bool = False
) -> optax.GradientTransformation:
    """Natural-gradient steps for a Gaussian family, Adam for others.

    Args:
        problem: model and family.
        steps: of the fit; the rate of Adam falls over those that move.
        exact: whether the gradient has no noise, so that steps may be longer.
        anneals: whether the rate of natural-gradient steps falls too.
    """
    if not has_natural_gradient(problem.family):
        return _adam(moving_steps(steps))
    if anneals:
        return natural_gradient(problem, _falling(ANNEALED_RATE, moving_steps(steps)), scale_rate=ANNEALED_SCALE_RATE)
    if not exact:
        return natural_gradient(problem)
    by_size = EXACT_KL_PER_DATUM * problem.model.num_data, EXACT_KL_PER_COORDINATE * problem.model.dim
    return natural_gradient(problem, momentum=0.0, max_kl=max(EXACT_KL, *by_size))


def moving_steps(steps: int) -> int:
    """How many steps of a fit move, at least: a short fit has no warm-up."""
    return steps - WARM_UP_STEPS if steps > 2 * WARM_UP_STEPS else steps


def warm_up_until(choice: Choice | None, steps: int) -> int:
    """The step up to which parameters stay where they are and weights are learned; 0 for no warm-up.

    A natural-gradient step is too long to be noisy, and Adam remembers the noise of its first ones for thousands.

    Args:
        choice: of the gradient; `None` where the variates were given.
        steps: of the fit.
    """
    learns = choice is not None and choice.base == "sampled" and choice.variates
    return WARM_UP_STEPS if learns and moving_steps(steps) < steps else 0


def _is_flow(problem: Problem) -> bool:
    return problem.family.refuses(Capability.FORWARD_DENSITY) is None


@functools.cache
def _adam(steps: int) -> optax.GradientTransformation:
    """One object for each number of steps, so that a second fit finds the program that the first compiled."""
    return optax.adam(_falling(0.05, steps))


@functools.cache
def _falling(rate: float, steps: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(rate, steps)
