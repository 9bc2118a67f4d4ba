# SPDX-License-Identifier: Apache-2.0
"""The compiled part of a fit: many steps in one program, for one fit or for several side by side."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Key

from quell.core.compilation import quick_jit
from quell.core.tiers import tiered_jit
from quell.fit.algorithm import Algorithm
from quell.fit.history import History
from quell.fit.newton import Newton
from quell.fit.step import LoopState, StepPolicy, take_step

BUFFER = 1024
"""Most steps of a chunk: the length of the history that a chunk returns."""

FIT_AXIS = "fit"
"""Name of the axis of devices that fits are spread over."""


def _run_chunk(
    algorithm: Algorithm | Newton,
    policy: StepPolicy,
    key: Key[Array, "*fit"],
    state: LoopState,
    until: Int[Array, "*fit"],
    fit_mesh: Mesh | None = None,
) -> tuple[LoopState, History]:
    """Take steps until their number is `until`, fewer if too many consecutive ones are not finite.

    The number is an argument and the history a buffer of fixed length, so that chunks of any length share
    one compiled program, and a fit does not depend on their lengths.

    Several fits run side by side: key, state and number have a leading axis, which is the second in the history, and a
    fit that has ended waits for the others. On the devices of `fit_mesh` each has its share of the fits; there is no
    communication between them, and one whose fits have ended does not wait within the chunk.
    """
    if fit_mesh is None:
        return _run(algorithm, policy, key, state, until)
    arrays, rest = eqx.partition(algorithm, eqx.is_array)
    everywhere, by_fit = PartitionSpec(), PartitionSpec(FIT_AXIS)
    run = jax.shard_map(
        lambda arrays, *of_fits: _run(eqx.combine(arrays, rest), *of_fits),
        mesh=fit_mesh,
        in_specs=(everywhere, everywhere, by_fit, by_fit, by_fit),
        out_specs=(by_fit, PartitionSpec(None, FIT_AXIS)),
        check_vma=False,
    )
    return run(arrays, policy, key, state, until)


run_chunk = quick_jit(_run_chunk)
"""For thousands of steps."""

run_rounds = tiered_jit(_run_chunk)
"""For a few, which a small model has taken before a compiler would have begun."""


def _run(
    algorithm: Algorithm | Newton,
    policy: StepPolicy,
    key: Key[Array, "*fit"],
    state: LoopState,
    until: Int[Array, "*fit"],
) -> tuple[LoopState, History]:
    """Advance while any fit is going, and keep the diagnostics of each step in a buffer of fixed length.

    A step is traced once, for the shapes of its diagnostics and for the body of the loop.
    """

    def step_or_stay(key: Key[Array, ""], now: LoopState, is_going: Bool[Array, ""]) -> tuple[LoopState, History]:
        after, info = take_step(algorithm, policy, key, now)
        return jax.tree.map(lambda new, old: jnp.where(is_going, new, old), after, now), info

    def is_going(now: LoopState) -> Bool[Array, "*fit"]:
        return policy.is_going(now, until) & ~algorithm.has_ended(now.algorithm)

    def advance(now: LoopState) -> tuple[LoopState, History]:
        if key.ndim == 0:
            return take_step(algorithm, policy, key, now)
        return jax.vmap(step_or_stay)(key, now, is_going(now))

    traced, shapes = jax.make_jaxpr(advance, return_shape=True)(state)

    def body(carry: tuple[LoopState, History, Int[Array, ""]]) -> tuple[LoopState, History, Int[Array, ""]]:
        now, history, row = carry
        after, info = jax.tree.unflatten(jax.tree.structure(shapes), jaxpr_as_fun(traced)(*jax.tree.leaves(now)))
        return after, jax.tree.map(lambda h, i: h.at[row].set(i), history, info), row + 1

    buffer = jax.tree.map(lambda leaf: jnp.zeros((BUFFER, *leaf.shape), leaf.dtype), shapes[1])
    start = (state, buffer, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: jnp.any(is_going(carry[0])), body, start)[:2]
