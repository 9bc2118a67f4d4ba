# SPDX-License-Identifier: Apache-2.0
"""Operations that move elements without changing them, and where each comes from."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from quell.structure.flat_program import Step, Value

MOVES: dict[str, tuple[int, ...] | None] = {
    "concatenate": None,
    "dynamic_slice": (0,),
    "dynamic_update_slice": (0, 1),
    "gather": (0,),
    "pad": (0, 1),
    "rev": (0,),
    "scatter": (0, 2),
    "slice": (0,),
    "split": (0,),
    "stack": None,
    "tile": (0,),
    "transpose": (0,),
}
"""Operations that move elements, as constants say: which of their operands; `None` for all."""


def moving_operands(step: Step) -> tuple[int, ...]:
    """Which operands have elements that are moved; none where the operation does something else."""
    if step.name == "select_n":  # by constants
        return tuple(range(1, len(step.inputs)))
    if step.params.get("update_jaxpr") is not None:  # a scatter that computes what it writes
        return ()
    moving = MOVES.get(step.name, ())
    return tuple(range(len(step.inputs))) if moving is None else moving


def moving_constants(step: Step) -> list[Value]:
    """Operands that say how elements are moved; all of them where the operation does something else."""
    moving = moving_operands(step)
    return [value for at, value in enumerate(step.inputs) if at not in moving]


def scattered(step: Step) -> bool:
    """Whether elements are added to others, where constants say."""
    return step.name == "scatter-add" and not step.inputs[1].depends


def target_of(step: Step) -> Callable[[Callable[[Value], Array]], list[Array]]:
    """Numbers of the elements that are added to each of others: -1 for none, and -2 where there are several."""
    before, indices, updates = step.inputs

    def make(look_up: Callable[[Value], Array]) -> list[Array]:
        def added(values: Array) -> Array:
            return step.bind(jnp.zeros(before.shape, before.dtype), look_up(indices), values)

        numbers = jnp.arange(updates.size, dtype=updates.dtype).reshape(updates.shape)
        count = added(jnp.ones_like(numbers))
        return [jnp.where(count > 1, -2, jnp.where(count == 1, added(numbers), -1)).astype(jnp.int32)]

    return make


def source_of(step: Step) -> Callable[[Callable[[Value], Array]], list[Array]]:
    """Numbers of the elements that an operation moves, in their new order; negative for an index out of bounds."""
    moving, changed = moving_operands(step), {"fill_value": -1} if step.name == "gather" else {}
    firsts = np.cumsum([0, *(step.inputs[at].size for at in moving)])

    def make(look_up: Callable[[Value], Array]) -> list[Array]:
        given = [None if at in moving else look_up(value) for at, value in enumerate(step.inputs)]
        for first, at in zip(firsts, moving, strict=False):
            value = step.inputs[at]
            given[at] = jnp.arange(first, first + value.size, dtype=jnp.int32).reshape(value.shape)
        found = step.bind(*given, **changed)
        return list(found) if isinstance(found, list | tuple) else [found]

    return make
