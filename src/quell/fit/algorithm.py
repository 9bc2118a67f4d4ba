# SPDX-License-Identifier: Apache-2.0
"""Variational inference as an algorithm of three pure functions: `init`, `step` and `sample`."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Key, PyTree

from quell.families.sample import draw_latents
from quell.gradient import Gradient, GradientInfo, GradientState


class AlgorithmState(eqx.Module):
    """State of an `Algorithm`.

    Args:
        params: of the family.
        optimizer: the optimiser's state.
        gradient: moments, and the states of the approximations.
    """

    params: PyTree
    optimizer: PyTree
    gradient: GradientState


class Algorithm(eqx.Module):
    """The combined gradient with an optimiser, in the shape of BlackJAX's algorithms, for a loop of your own.

    All three methods are pure, and work inside `jax.jit`, `jax.lax.scan` and `jax.vmap`. `quell.fit` takes the same
    steps, with the number of the step folded into one key.

    Args:
        gradient: of the loss: problem, variates, sampler and rule.
        optimizer: any optax optimiser.

    Example:
        >>> import jax, optax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> problem = quell.Problem(model, quell.MeanField(2))
        >>> algorithm = quell.Algorithm(quell.Gradient(problem, quell.paper.variates("c2")), optax.sgd(0.05))
        >>> keys = jax.random.split(jax.random.key(0), 100)
        >>> state, infos = jax.lax.scan(lambda state, key: algorithm.step(key, state), algorithm.init(), keys)
        >>> infos.elbo.shape, algorithm.sample(jax.random.key(1), state, 5).shape
        ((100,), (5, 2))

    References: Cabezas et al. (2024), "BlackJAX: composable Bayesian inference in JAX".
    """

    gradient: Gradient
    optimizer: Any = eqx.field(converter=lambda given: checked_optimizer(given))

    def init(self, params: PyTree | None = None) -> AlgorithmState:
        """The state before the first step.

        Args:
            params: to start from; the family's `init` by default.
        """
        start = self.gradient.problem.family.init() if params is None else params
        return AlgorithmState(start, self.optimizer.init(start), self.gradient.init(start))

    def step(
        self, key: Key[Array, ""], state: AlgorithmState, *, next_key: Key[Array, ""] | None = None
    ) -> tuple[AlgorithmState, GradientInfo]:
        """Draw a gradient and follow it.

        Args:
            key: for the noise and the minibatches of this step; a new one for each.
            state: from `init` or the step before.
            next_key: of the step after this one, where it is known; data on disk are read ahead by it.

        Returns:
            The next state, and per-step diagnostics.
        """
        loss_grad, gradient, info = self.gradient.update(key, state.params, state.gradient, next_key=next_key)
        updates, optimizer = self.optimizer.update(loss_grad, state.optimizer, state.params)
        return AlgorithmState(optax.apply_updates(state.params, updates), optimizer, gradient), info

    def must_stay_finite(self, state: AlgorithmState) -> PyTree:
        """What a step must leave finite, or it is skipped: parameters and state of the optimiser."""
        return state.params, state.optimizer

    def has_ended(self, state: AlgorithmState) -> Bool[Array, "*fit"]:
        """Whether no further step is worth taking: never, since an optimiser does not know."""
        return jnp.asarray(False)

    def sample(self, key: Key[Array, ""], state: AlgorithmState, num: int) -> Any:
        """Draw latents from the current distribution, in the shape the model takes, with a leading axis."""
        problem = self.gradient.problem
        return jax.vmap(problem.model.constrain)(draw_latents(key, problem.family, state.params, num))


def checked_optimizer(given: Any) -> optax.GradientTransformation:
    """Refuse what is not an optax optimiser."""
    if isinstance(given, optax.GradientTransformation):
        return given
    raise TypeError(f"`optimizer` must be an optax transformation, got {given!r}; try `optimizer=optax.adam(0.01)`.")
