# SPDX-License-Identifier: Apache-2.0
"""The compiled part of a fit: many steps in one program, for one fit or for several side by side."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.compilation import quick_jit
from quell.core.devices import constrain_state
from quell.fit.algorithm import Algorithm, AlgorithmState
from quell.fit.average import TailAverage
from quell.gradient import GradientInfo

BUFFER = 1024
"""Most steps of a chunk: the length of the history that a chunk returns."""


FIT_AXIS = "fit"
"""Name of the axis of devices that fits are spread over."""


class LoopState(eqx.Module):
    """Where a fit stands.

    Args:
        algorithm: parameters, optimiser's state, moments, and the states of the approximations.
        average: of the last part of the iterates; `None` where none was asked for.
        step: number of steps done, skipped ones included.
        skipped_in_a_row: how many of the latest steps were skipped, the one that ended the fit included.
    """

    algorithm: AlgorithmState
    average: TailAverage | None
    step: Int[Array, "*fit"]
    skipped_in_a_row: Int[Array, "*fit"]

    @property
    def params(self) -> PyTree:
        """Where the steps have led."""
        return self.algorithm.params

    @property
    def best_params(self) -> PyTree:
        """The average where there is one, else where the steps have led."""
        return self.params if self.average is None else self.average.or_last(self.params)


class StepPolicy(eqx.Module):
    """How steps are judged; arrays, so that other numbers need no other program.

    Args:
        max_skipped: most steps in a row that may be skipped because they are not finite.
        average_after: the iterates of steps after this many are averaged.
        still: in as many first steps the parameters stay where they are, and only weights are learned.
    """

    max_skipped: Int[Array, ""]
    average_after: Int[Array, ""]
    still: Int[Array, ""]

    @classmethod
    def of(cls, *, max_skipped: int = 0, average_after: int = 0, still: int = 0) -> "StepPolicy":
        """From plain numbers."""
        return cls(*(jnp.asarray(number, jnp.int32) for number in (max_skipped, average_after, still)))


class StepInfo(eqx.Module):
    """What one step leaves in the history.

    Args:
        gradient: what the gradient told.
        skipped: whether the step was not taken because it was not finite.
    """

    gradient: GradientInfo
    skipped: Bool[Array, "*step"]


def init_loop(algorithm: Algorithm, params: PyTree, *, averages: bool = False) -> LoopState:
    """The state before the first step.

    Weak types are made strong, as a step would make them: a state of other types would be compiled for twice.
    """
    zero = jnp.zeros((), jnp.int32)
    state = LoopState(algorithm.init(params), TailAverage.empty(params) if averages else None, zero, zero)
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)


def take_step(
    algorithm: Algorithm, policy: StepPolicy, key: Key[Array, ""], state: LoopState
) -> tuple[LoopState, StepInfo]:
    """One step; its randomness is a function of the key and the number of the step.

    A step that would leave the finite numbers is skipped: all but the number of the step stays as it was. One skipped
    step too many in a row is not counted either, and marks the end.
    """
    keys = (jax.random.fold_in(key, state.step + ahead) for ahead in (0, 1))
    moved, info = algorithm.step(next(keys), state.algorithm, next_key=next(keys))
    finite = _stays_finite(moved.params, state.algorithm.params) & _stays_finite(
        moved.optimizer, state.algorithm.optimizer
    )
    reached = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state.algorithm)
    moves = state.step >= policy.still
    here = (state.algorithm.params, state.algorithm.optimizer)
    there = (reached.params, reached.optimizer)
    params, optimizer = jax.tree.map(lambda new, old: jnp.where(moves, new, old), there, here)
    reached = AlgorithmState(params, optimizer, reached.gradient)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    average = state.average
    if average is not None:
        average = average.include(reached.params, finite & moves & (state.step >= policy.average_after))
    counts = in_a_row <= policy.max_skipped
    return constrain_state((LoopState(reached, average, state.step + counts, in_a_row), StepInfo(info, ~finite)))


def _stays_finite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether no number has become infinite or NaN; an optimiser may keep infinite ones from the start."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    kept = [jnp.all(jnp.isfinite(n) | ~jnp.isfinite(o)) for n, o in pairs if jnp.issubdtype(n.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(kept)) if kept else jnp.array(True)


@quick_jit
def run_chunk(
    algorithm: Algorithm, policy: StepPolicy, key: Key[Array, ""], state: LoopState, until: Int[Array, ""]
) -> tuple[LoopState, StepInfo]:
    """Take steps until their number is `until`, fewer if too many in a row are not finite.

    The number is an argument and the history a buffer of fixed length, so that chunks of any length share
    one compiled program, and a fit does not depend on their lengths.
    """
    return _repeat(lambda now: take_step(algorithm, policy, key, now), lambda now: is_going(policy, now, until), state)


@quick_jit
def run_chunks(
    algorithm: Algorithm, policy: StepPolicy, keys: Key[Array, "fit"], states: LoopState, until: Int[Array, "fit"]
) -> tuple[LoopState, StepInfo]:
    """`run_chunk` for several fits side by side; one that has ended waits for the others.

    Everything has a leading axis, one entry a fit; in the history it is the second.
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

    Devices do not talk to each other, and one whose fits have ended does not wait within the chunk.
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
    """Whether there are steps to take, and not too many in a row were skipped."""
    return (state.step < until) & (state.skipped_in_a_row <= policy.max_skipped)


def _repeat(
    advance: Callable[[LoopState], tuple[LoopState, StepInfo]],
    is_going: Callable[[LoopState], Bool[Array, "*fit"]],
    state: LoopState,
) -> tuple[LoopState, StepInfo]:
    """Advance while any fit is going, and keep what each step told in a buffer of fixed length."""
    _, like = jax.eval_shape(advance, state)
    buffer = jax.tree.map(lambda leaf: jnp.zeros((BUFFER, *leaf.shape), leaf.dtype), like)

    def body(carry: tuple[LoopState, StepInfo, Int[Array, ""]]) -> tuple[LoopState, StepInfo, Int[Array, ""]]:
        now, history, row = carry
        after, info = advance(now)
        return after, jax.tree.map(lambda h, i: h.at[row].set(i), history, info), row + 1

    start = (state, buffer, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: jnp.any(is_going(carry[0])), body, start)[:2]
