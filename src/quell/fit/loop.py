# SPDX-License-Identifier: Apache-2.0
"""The compiled part of a fit: many steps in one program, for one fit or for several side by side."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.compilation import quick_jit
from quell.fit.algorithm import Algorithm
from quell.fit.step import LoopState, StepInfo, StepPolicy, take_step

BUFFER = 1024
"""Most steps of a chunk: the length of the history that a chunk returns."""

FIT_AXIS = "fit"
"""Name of the axis of devices that fits are spread over."""


@quick_jit
def run_chunk(
    algorithm: Algorithm, policy: StepPolicy, key: Key[Array, ""], state: LoopState, until: Int[Array, ""]
) -> tuple[LoopState, StepInfo]:
    """Take steps until their number is `until`, fewer if too many consecutive ones are not finite.

    The number is an argument and the history a buffer of fixed length, so that chunks of any length share
    one compiled program, and a fit does not depend on their lengths.
    """
    return _repeat(lambda now: take_step(algorithm, policy, key, now), lambda now: is_going(policy, now, until), state)


@quick_jit
def run_chunks(
    algorithm: Algorithm, policy: StepPolicy, keys: Key[Array, "fit"], states: LoopState, until: Int[Array, "fit"]
) -> tuple[LoopState, StepInfo]:
    """`run_chunk` for several fits side by side; one that has ended waits for the others.

    Everything has a leading axis, one entry per fit; in the history it is the second.
    """
    return _side_by_side(algorithm, policy, keys, states, until)


def run_spread(
    mesh: Mesh,
    algorithm: Algorithm,
    policy: StepPolicy,
    keys: Key[Array, "fit"],
    states: LoopState,
    until: Int[Array, "fit"],
) -> tuple[LoopState, StepInfo]:
    """`run_chunks` with the fits spread over the devices of a mesh, a multiple of their number.

    There is no communication between devices, and one whose fits have ended does not wait within the chunk.
    """
    of_fits = jax.device_put((keys, states, until), NamedSharding(mesh, PartitionSpec(FIT_AXIS)))
    return _run_spread(mesh, algorithm, policy, *of_fits)


@quick_jit
def _run_spread(mesh: Mesh, algorithm: Algorithm, policy: StepPolicy, *of_fits: PyTree) -> tuple[LoopState, StepInfo]:
    arrays, rest = eqx.partition(algorithm, eqx.is_array)
    everywhere, by_fit = PartitionSpec(), PartitionSpec(FIT_AXIS)
    run = jax.shard_map(
        lambda arrays, *of_fits: _side_by_side(eqx.combine(arrays, rest), *of_fits),
        mesh=mesh,
        in_specs=(everywhere, everywhere, by_fit, by_fit, by_fit),
        out_specs=(by_fit, PartitionSpec(None, FIT_AXIS)),
        check_vma=False,
    )
    return run(arrays, policy, *of_fits)


def _side_by_side(
    algorithm: Algorithm, policy: StepPolicy, keys: Key[Array, "fit"], states: LoopState, until: Int[Array, "fit"]
) -> tuple[LoopState, StepInfo]:
    def step_or_stay(key: Key[Array, ""], now: LoopState, going: Bool[Array, ""]) -> tuple[LoopState, StepInfo]:
        after, info = take_step(algorithm, policy, key, now)
        return jax.tree.map(lambda new, old: jnp.where(going, new, old), after, now), info

    return _repeat(
        lambda now: jax.vmap(step_or_stay)(keys, now, is_going(policy, now, until)),
        lambda now: is_going(policy, now, until),
        states,
    )


def is_going(policy: StepPolicy, state: LoopState, until: Int[Array, "*fit"]) -> Bool[Array, "*fit"]:
    """Whether there are steps to take, and not too many consecutive ones were skipped."""
    return (state.step < until) & (state.skipped_in_a_row <= policy.max_skipped)


def _repeat(
    advance: Callable[[LoopState], tuple[LoopState, StepInfo]],
    is_going: Callable[[LoopState], Bool[Array, "*fit"]],
    state: LoopState,
) -> tuple[LoopState, StepInfo]:
    """Advance while any fit is going, and keep the diagnostics of each step in a buffer of fixed length."""
    _, like = jax.eval_shape(advance, state)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((BUFFER, *leaf.shape), leaf.dtype), like)

    def body(carry: tuple[LoopState, StepInfo, Int[Array, ""]]) -> tuple[LoopState, StepInfo, Int[Array, ""]]:
        now, history, row = carry
        after, info = advance(now)
        return after, jax.tree.map(lambda h, i: h.at[row].set(i), history, info), row + 1

    start = (state, buffer, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: jnp.any(is_going(carry[0])), body, start)[:2]
