# SPDX-License-Identifier: Apache-2.0
"""A learning rate that is a number in the optimiser's state, so that fits at many rates share one program."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from quell.core.checks import check_positive, first_line
from quell.fit.checkpoint.fingerprint import program_digest
from quell.fit.natural_gradient import natural_num_data

Optimizer = Callable[[Any], optax.GradientTransformation]
"""Of a learning rate."""

_EXAMPLE = "try `optimizer=optax.adam`, or `optimizer=lambda rate: optax.sgd(rate, momentum=0.9)`."


@functools.lru_cache(maxsize=16)
def with_rate_in_state(optimizer: Optimizer) -> optax.GradientTransformation:
    """The optimiser with its rate in its state; one object for each, so that a second sweep finds the program.

    Only the rate is injected: other numbers of the optimiser stay constants of the program.
    """
    made, injected = _checked(optimizer), _at_rate(optimizer, 1.0)
    if (num_data := natural_num_data(made)) is not None:
        injected.update.num_data = num_data  # pyright: ignore[reportAttributeAccessIssue]
    return injected


def states_at(optimizer: Optimizer, rates: Float[Array, "fit"], params: PyTree) -> PyTree:
    """The optimiser's states before the first step, one per rate; strong types, as `init_loop` makes them."""
    rates = rates.astype(jnp.result_type(*jax.tree.leaves(params)))
    states = jax.vmap(lambda rate: _at_rate(optimizer, rate).init(params))(rates)
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), states)


def _at_rate(optimizer: Optimizer, rate: Any) -> optax.GradientTransformation:
    return optax.inject_hyperparams(lambda rate: optimizer(rate))(rate=rate)


def optimizer_digest(optimizer: Optimizer, params: PyTree) -> str:
    """A digest of the program of one step, whatever its rate."""
    made = with_rate_in_state(optimizer)
    return program_digest(lambda grads, params: made.update(grads, made.init(params), params), params, params)


def checked_rates(given: Any) -> tuple[float, ...]:
    """Refuse learning rates that are not different positive numbers."""
    rates = tuple(given) if isinstance(given, Iterable) else ()
    if not rates:
        raise ValueError(
            f"`learning_rates` must be a list of at least one, got {given!r}; try `learning_rates=(0.001, 0.01, 0.1)`."
        )
    for rate in rates:
        check_positive("learning_rates", rate)
    if len(set(map(float, rates))) < len(rates):
        raise ValueError(
            f"`learning_rates` must be different numbers, got {rates}; for more fits at each, try `num_seeds=`."
        )
    return tuple(map(float, rates))


def _checked(optimizer: Any) -> optax.GradientTransformation:
    """What the function makes of a rate that is an array, as it will be in the compiled program."""
    made = []
    if not callable(optimizer):
        raise TypeError(f"`optimizer` must be a function of the learning rate, got {optimizer!r}; {_EXAMPLE}")
    try:
        jax.eval_shape(lambda rate: made.append(optimizer(rate)), jax.ShapeDtypeStruct((), float))
    except (TypeError, jax.errors.ConcretizationTypeError) as error:
        first = first_line(error)
        raise TypeError(
            f"`optimizer` must take the rate as an array, got a function that cannot ({first}); {_EXAMPLE}"
        ) from error
    if not isinstance(made[0], optax.GradientTransformation):
        raise TypeError(
            f"`optimizer` must return an optax optimiser, got a function that returns {made[0]!r}; {_EXAMPLE}"
        )
    return made[0]
