# SPDX-License-Identifier: Apache-2.0
"""The loop: many steps in one compiled program, the host only between chunks."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.compilation import quick_jit
from quell.gradient import Gradient, GradientInfo, GradientState

_BUFFER = 1024
_CHUNK_SECONDS = 0.25
_FIRST_CHUNK = 16


class LoopState(eqx.Module):
    """Where a fit stands.

    Args:
        params: of the family.
        optimizer: the optimiser's state.
        gradient: moments, and the states of the approximations.
        step: number of steps taken.
        is_finite: whether the next step is still worth taking.
    """

    params: PyTree
    optimizer: PyTree
    gradient: GradientState
    step: Int[Array, ""]
    is_finite: Bool[Array, ""]


def init_loop(gradient: Gradient, optimizer: optax.GradientTransformation, params: PyTree) -> LoopState:
    """The state before the first step.

    Weak types are made strong, as a step would make them: a state of other types would be compiled for twice.
    """
    start = jnp.zeros((), jnp.int32)
    state = LoopState(params, optimizer.init(params), gradient.init(params), start, jnp.array(True))
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)


def take_step(
    gradient: Gradient, optimizer: Any, key: Key[Array, ""], state: LoopState
) -> tuple[LoopState, GradientInfo]:
    """One step; its randomness is a function of the key and the number of the step.

    A step that would leave the finite numbers is not taken: the old state comes back, marked.
    """
    step_key = jax.random.fold_in(key, state.step)
    loss_grad, gradient_state, info = gradient.update(step_key, state.params, state.gradient)
    updates, optimizer_state = optimizer.update(loss_grad, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
    new = LoopState(params, optimizer_state, gradient_state, state.step + 1, finite)
    old = LoopState(state.params, state.optimizer, state.gradient, state.step, finite)
    return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old), info


@quick_jit
def run_chunk(
    gradient: Gradient, optimizer: Any, key: Key[Array, ""], state: LoopState, num_steps: Int[Array, ""]
) -> tuple[LoopState, GradientInfo]:
    """Take up to `num_steps` steps, fewer if the parameters stop being finite.

    The number is an argument and the history a buffer of fixed length, so that chunks of any length share
    one compiled program.
    """
    _, like = eqx.filter_eval_shape(take_step, gradient, optimizer, key, state)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((_BUFFER, *leaf.shape), leaf.dtype), like)

    def body(carry: tuple[LoopState, GradientInfo]) -> tuple[LoopState, GradientInfo]:
        now, history = carry
        row = now.step - state.step
        after, info = take_step(gradient, optimizer, key, now)
        return after, jax.tree.map(lambda h, i: h.at[row].set(i), history, info)

    def proceed(carry: tuple[LoopState, GradientInfo]) -> Bool[Array, ""]:
        return (carry[0].step - state.step < num_steps) & carry[0].is_finite

    return jax.lax.while_loop(proceed, body, (state, buffer))


def run_loop(
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    state: LoopState,
    *,
    num_steps: int,
    after_chunk: Callable[[LoopState, GradientInfo], None],
) -> None:
    """Run chunks until the steps are taken or the parameters stop being finite.

    Args:
        gradient: of the loss.
        optimizer: any optax transformation.
        key: the step's number is folded into it.
        state: where to start.
        num_steps: in all, counted from the state's step.
        after_chunk: sees the state and the history of each chunk, between chunks only.
    """
    first = int(state.step)
    done, length = 0, min(_FIRST_CHUNK, num_steps)
    while done < num_steps and bool(state.is_finite):
        start = time.perf_counter()
        state, infos = run_chunk(gradient, optimizer, key, state, jnp.asarray(length))
        taken = int(state.step) - first - done
        seconds = time.perf_counter() - start
        done += taken
        after_chunk(state, jax.tree.map(lambda leaf, n=taken: leaf[:n], jax.device_get(infos)))
        faster = int(length * _CHUNK_SECONDS / max(seconds, 1e-6))
        length = max(1, min(max(faster, 2 * _FIRST_CHUNK), _BUFFER, num_steps - done))
