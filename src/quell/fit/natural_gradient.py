# SPDX-License-Identifier: Apache-2.0
"""The natural gradient as an optax transformation, and the length of a gradient in the family's metric."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from quell.core.checks import check_positive
from quell.evaluation import Problem
from quell.families import AbstractFamily, AbstractGeometry, Capability

MAX_KL = 5.0
"""Default trust-region radius (KL, in nats): what a noisy gradient, or a density far from Gaussian, can bear."""

MAX_KL_PER_COORDINATE = 0.005
"""The same per coordinate, where there are thousands: a step then moves each by a tenth of its scale, and the number
of steps to anywhere does not grow with the number of coordinates."""

RESPONSE = 0.3
"""How much the self-tuned rate follows the alignment of two gradients: at most a factor of exp(0.3) per step."""

LEAST_RATE = 1e-4
"""Of the self-tuned rate."""


class NaturalState(NamedTuple):
    """State of `natural_gradient`.

    Args:
        step: steps taken.
        rate: of the step before, before the trust region bounds it.
        last: the direction of the step before, which a self-tuned rate goes by. It is kept with a schedule too, so that
            a fit can change over from a self-tuned rate.
        velocity: decayed sum of directions, where there is momentum.
    """

    step: Int[Array, ""]
    rate: Float[Array, ""]
    last: PyTree
    velocity: PyTree


def natural_gradient(
    problem: Problem,
    learning_rate: float | optax.Schedule | None = None,
    *,
    momentum: float | None = None,
    max_kl: float | None = None,
    scale_rate: float = 1.0,
) -> optax.GradientTransformation:
    r"""Natural-gradient steps: \(w \leftarrow w + \rho F^{-1} \nabla \mathrm{ELBO}\), in the family's own geometry.

    \(F\) is the Fisher metric of the Gaussian, so that a step does not depend on how it is parameterised. For a
    full-rank Gaussian a step with rate one near the optimum is one of Newton's method: on an exact gradient five to ten
    steps are enough for most models. A mean-field Gaussian does not see the correlations of the posterior,
    so that its steps must be smaller and gain from momentum.

    By default the rate tunes itself. It starts at one, and after each step it is multiplied by \(e^{0.3 a}\), where
    \(a\), between -1 and 1, is the inner product of the last two gradients, in the metric, over the squared norm of the
    first. Steps that are too long make gradients point back, and noise does so a little; so the rate falls to what the
    curvature allows, and, where there is noise, on as one over the number of steps, which averages it out.

    Args:
        problem: the family, which must be mean-field, full-rank or low-rank; the number of data turns the gradient of
            `-ELBO / num_data` back into nats.
        learning_rate: \(\rho\), at most one, or a schedule such as `quell.harmonic_schedule(10)`; by default it tunes
            itself. Noise lowers that early, which is right near an optimum. Where there are many, as those of a
            network are, a fit with `optax.cosine_decay_schedule(0.3, steps)` and a `scale_rate` of 0.5 goes on moving,
            and ends in a better one.
        momentum: \(\beta\) of Nesterov's momentum; by default 0 for full-rank and 0.9 for the others.
        max_kl: trust-region radius in nats: the rate is lowered where a step would go further, predicted as
            \(\tfrac12 \rho^2\, g^\top F^{-1} g\); 5 by default, or 0.005 per coordinate where that is more.
        scale_rate: what the rate of all parameters but the location is multiplied by; at most one. The gradient of a
            full-rank scale has a noisy entry for each pair of coordinates, and that of the location has one for
            each coordinate: where noise keeps steps short, the location can go further.

    Returns:
        An optimiser for `quell.fit` and `quell.Algorithm`; `update` needs the parameters. The same arguments give the
        same object, so that nothing is compiled twice.

    Cost: that of the family's geometry: a few operations per parameter for mean-field, `dim` cubed for full-rank.
    Memory: the direction of the last step, as long as the parameters, and as much again for momentum.

    Example:
        >>> import equinox as eqx, jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> problem = quell.Problem(model, quell.FullRank(2))
        >>> exact = quell.BaseGradient(quell.ClosedForm(full_data=True), quell.ClosedForm(), quell.ClosedForm())
        >>> algorithm = quell.Algorithm(quell.Gradient(problem, base=exact), quell.natural_gradient(problem))
        >>> state = algorithm.init()
        >>> step = eqx.filter_jit(algorithm.step)
        >>> for key in jax.random.split(jax.random.key(0), 8):
        ...     state, info = step(key, state)
        >>> round(float(quell.exact_elbo(problem, state.params)), 3)
        -2.139

    References: Amari (1998), "Natural gradient works efficiently in learning"; Khan & Rue (2023), "The Bayesian
    learning rule"; Almeida et al. (1998), "Parameter adaptation in stochastic optimization", for the self-tuned rate.
    """
    if (reason := problem.family.refuses(Capability.GEOMETRY)) is not None:
        raise ValueError(f"`problem.family` must have a Fisher geometry, got none: {reason}; try `optax.adam(0.01)`.")
    max_kl = max(MAX_KL, MAX_KL_PER_COORDINATE * problem.family.dim) if max_kl is None else max_kl
    momentum = problem.family.geometry.momentum if momentum is None else momentum
    check_positive("max_kl", max_kl)
    for name, share in {"learning_rate": learning_rate, "scale_rate": scale_rate}.items():
        if isinstance(share, int | float) and not 0 < share <= 1:
            raise ValueError(f"`{name}` must be above 0 and at most 1, got {share}.")
    if not 0 <= momentum < 1:
        raise ValueError(f"`momentum` must be at least 0 and below 1, got {momentum}.")
    numbers = float(momentum), float(max_kl), float(scale_rate)
    return _transformation(problem.family, problem.model.num_data, learning_rate, *numbers)


@functools.cache
def harmonic_schedule(steps: int | float, init_value: int | float = 1.0) -> optax.Schedule:
    r"""The rate \(\rho_t = \rho_0 / (1 + t/\tau)\) for natural-gradient steps with noise.

    Near the optimum a natural-gradient step is \(e \leftarrow (1-\rho) e + \rho\,\text{noise}\). A rate that falls as
    \(\tau/t\) averages the noise of the last \(t/\tau\)th part of the steps and forgets the start as \(t^{-\tau}\);
    what is left of the noise falls as \(\tau/2t\).

    Args:
        steps: \(\tau\): a small one averages more, a large one forgets the start sooner.
        init_value: \(\rho_0\).

    Returns:
        A schedule for `quell.natural_gradient` or any optax optimiser; the same object for the same numbers.

    References: Robbins & Monro (1951); Hoffman et al. (2013), "Stochastic variational inference".
    """
    check_positive("steps", float(steps))
    check_positive("init_value", float(init_value))
    return lambda count: init_value / (1.0 + count / steps)


def has_natural_gradient(family: AbstractFamily) -> bool:
    """Whether the Fisher geometry of a family is known."""
    return family.refuses(Capability.GEOMETRY) is None


def natural_sq_norm(problem: Problem, params: PyTree, loss_grad: PyTree) -> Float[Array, ""]:
    r"""\(g^\top F^{-1} g\) in nats, of a gradient of the loss \(-\mathrm{ELBO}/N\): twice what a step could gain."""
    geometry = problem.family.geometry
    ascent = jax.tree.map(lambda leaf: -problem.model.num_data * leaf, loss_grad)
    return geometry.sq_norm(params, geometry.direction(params, ascent))


def is_natural(optimizer: optax.GradientTransformation) -> bool:
    """Whether an optimiser is one that `natural_gradient` made."""
    return natural_num_data(optimizer) is not None


def natural_num_data(optimizer: optax.GradientTransformation) -> int | None:
    """Number of data that `natural_gradient` made an optimiser for; `None` for any other optimiser."""
    return getattr(optimizer.update, "num_data", None)


@functools.cache
def _transformation(
    family: AbstractFamily,
    num_data: int,
    learning_rate: float | optax.Schedule | None,
    momentum: float,
    max_kl: float,
    scale_rate: float,
) -> optax.GradientTransformation:
    geometry = family.geometry

    def mixed(velocity: PyTree, direction: PyTree) -> PyTree:
        return jax.tree.map(lambda v, d: momentum * v + (1.0 - momentum) * d, velocity, direction)

    def init(params: PyTree) -> NaturalState:
        nothing = jax.tree.map(jnp.zeros_like, geometry.direction(params, jax.tree.map(jnp.zeros_like, params)))
        rate = jnp.ones((), jnp.result_type(*jax.tree.leaves(params)))
        return NaturalState(jnp.zeros((), jnp.int32), rate, nothing, nothing if momentum > 0 else None)

    def update(updates: PyTree, state: Any, params: PyTree | None = None) -> tuple[PyTree, NaturalState]:
        if params is None:
            raise ValueError(
                "`params` must be given, because a natural gradient depends on where it is taken, got None; try "
                "`optimizer.update(grads, state, params)`."
            )
        ascent = jax.tree.map(lambda leaf: -num_data * leaf, updates)
        direction = geometry.direction(params, ascent)
        if learning_rate is None:
            rate = _tuned(geometry, params, direction, state)
        else:
            given = learning_rate(state.step) if callable(learning_rate) else learning_rate
            rate = jnp.asarray(given, state.rate.dtype)
        step, velocity = direction, state.velocity
        if momentum > 0:
            velocity = mixed(velocity, direction)
            step = mixed(velocity, direction)
        whole = jax.tree.map(lambda leaf: scale_rate * leaf, step)._replace(loc=step.loc) if scale_rate < 1 else step
        bounded = jnp.minimum(rate, jnp.sqrt(2.0 * max_kl / geometry.sq_norm(params, whole)))
        moved = geometry.move(params, step, bounded, scale_rate)
        after = NaturalState(state.step + 1, rate, direction, velocity)
        return jax.tree.map(jnp.subtract, moved, params), after

    update.num_data = num_data  # pyright: ignore[reportFunctionMemberAccess]
    return optax.GradientTransformation(init, update)


def _tuned(geometry: AbstractGeometry, params: PyTree, direction: PyTree, state: NaturalState) -> Float[Array, ""]:
    """The next rate; at the first step, where there is no gradient before, the same."""
    size = geometry.sq_norm(params, state.last)
    both = geometry.sq_norm(params, jax.tree.map(jnp.add, direction, state.last))
    inner = 0.5 * (both - size - geometry.sq_norm(params, direction))
    alignment = jnp.where(size > 0, inner / jnp.where(size > 0, size, 1.0), 0.0)
    rate = state.rate * jnp.exp(RESPONSE * jnp.clip(alignment, -1.0, 1.0))
    return jnp.clip(rate, LEAST_RATE, 1.0)
