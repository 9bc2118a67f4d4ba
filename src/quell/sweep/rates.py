# SPDX-License-Identifier: Apache-2.0
"""A learning rate that is a number in the optimiser's state, so that fits at many rates share one program."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from quell.fit.fingerprint import program_digest
from quell.fit.natural_gradient import natural_num_data

Optimizer = Callable[[Any], optax.GradientTransformation]
"""Of a learning rate."""


class RatedState(NamedTuple):
    """What the next step needs.

    Args:
        rate: the learning rate; no step changes it.
        inner: the state of the optimiser at that rate.
    """

    rate: Float[Array, "*fit"]
    inner: PyTree


@functools.lru_cache(maxsize=16)
def rated(optimizer: Optimizer) -> optax.GradientTransformation:
    """The optimiser with its rate in its state; one object for each, so that a second sweep finds the program."""
    num_data = natural_num_data(_checked(optimizer))

    def init(params: PyTree) -> RatedState:
        return start_at(optimizer, jnp.ones((), _dtype(params)), params)

    def update(updates: PyTree, state: Any, params: PyTree | None = None) -> tuple[PyTree, RatedState]:
        moves, inner = optimizer(state.rate).update(updates, state.inner, params)
        return moves, RatedState(state.rate, inner)

    if num_data is not None:
        update.num_data = num_data  # pyright: ignore[reportFunctionMemberAccess]
    return optax.GradientTransformation(init, update)


def start_at(optimizer: Optimizer, rate: Float[Array, ""], params: PyTree) -> RatedState:
    """The state before the first step at a rate."""
    return RatedState(rate, optimizer(rate).init(params))


def start_at_each(optimizer: Optimizer, rates: Float[Array, "fit"], params: PyTree) -> RatedState:
    """The states of several fits; strong types, as in `quell.fit.loop.init_loop`."""
    states = jax.vmap(lambda rate: start_at(optimizer, rate, params))(rates.astype(_dtype(params)))
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states)


def optimizer_digest(optimizer: Optimizer, params: PyTree) -> str:
    """A digest of the program of one step, whatever its rate."""

    def step(rate: Float[Array, ""], grads: PyTree, params: PyTree) -> PyTree:
        return rated(optimizer).update(grads, start_at(optimizer, rate, params), params)

    return program_digest(step, jax.ShapeDtypeStruct((), _dtype(params)), params, params)


def _checked(optimizer: Any) -> optax.GradientTransformation:
    """What the function makes of a rate that is an array, as it will be in the compiled program."""
    example = "try `optimizer=optax.adam`, or `optimizer=lambda rate: optax.sgd(rate, momentum=0.9)`."
    made = []
    if not callable(optimizer):
        raise TypeError(f"`optimizer` must be a function of the learning rate, got {optimizer!r}; {example}")
    try:
        jax.eval_shape(lambda rate: made.append(optimizer(rate)), jax.ShapeDtypeStruct((), float))
    except (TypeError, jax.errors.ConcretizationTypeError) as error:
        first = str(error).strip().split("\n")[0]
        raise TypeError(
            f"`optimizer` must pass the rate on to an optax optimiser as an array, got an error ({first}); {example}"
        ) from error
    if not isinstance(made[0], optax.GradientTransformation):
        raise TypeError(
            f"`optimizer` must return an optax optimiser, got a function that returns {made[0]!r}; {example}"
        )
    return made[0]


def _dtype(params: PyTree) -> Any:
    return jnp.result_type(*jax.tree.leaves(params))
