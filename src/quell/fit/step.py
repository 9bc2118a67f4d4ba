# SPDX-License-Identifier: Apache-2.0
"""One step of a fit: taken, skipped or part of the warm-up; and the average of the last iterates."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.devices import constrain_state
from quell.core.put import put
from quell.core.tiers import tiered_jit
from quell.core.trees import select
from quell.fit.algorithm import Algorithm, AlgorithmState
from quell.fit.history import History
from quell.fit.newton import Newton


class TailAverage(eqx.Module):
    """A running average of parameters.

    Args:
        mean: of the iterates taken in so far; the last iterate where there are none yet.
        count: how many they are.

    References: Polyak & Juditsky (1992), "Acceleration of stochastic approximation by averaging".
    """

    mean: PyTree
    count: Int[Array, "*fit"]

    def include(self, params: PyTree, wanted: Bool[Array, ""]) -> "TailAverage":
        """Take in one iterate, or leave the average as it is."""
        count = self.count + wanted

        def moved(old: Array, new: Array) -> Array:
            included = jnp.where(wanted, old + (new - old) / jnp.maximum(count, 1).astype(old.dtype), old)
            return jnp.where(self.count == 0, new, included)

        return TailAverage(jax.tree.map(moved, self.mean, params), count)


class LoopState(eqx.Module):
    """State of a fit between steps; with a leading axis for several fits.

    Args:
        algorithm: parameters, optimiser's state, moments, and the states of the approximations.
        average: of the last part of the iterates; `None` where none was asked for.
        step: number of steps done, skipped ones included.
        skipped_in_a_row: number of consecutive steps skipped last, the one that ended the fit included.
    """

    algorithm: AlgorithmState
    average: TailAverage | None
    step: Int[Array, "*fit"]
    skipped_in_a_row: Int[Array, "*fit"]

    @property
    def params(self) -> PyTree:
        """The last iterate."""
        return self.algorithm.params


def _count(number: Any) -> Array:
    return put(number, np.int32)


class StepPolicy(eqx.Module):
    """Which steps move, are skipped and are averaged; stored as arrays to avoid recompilation.

    Args:
        max_skipped: most consecutive steps that may be skipped because they are not finite.
        average_after: the iterates of steps after this many are averaged.
        warm_up: number of first steps that learn weights and leave the parameters where they are.
    """

    max_skipped: Int[Array, ""] = eqx.field(default=0, converter=_count)
    average_after: Int[Array, ""] = eqx.field(default=0, converter=_count)
    warm_up: Int[Array, ""] = eqx.field(default=0, converter=_count)

    def is_going(self, state: LoopState, until: Int[Array, "*fit"]) -> Bool[Array, "*fit"]:
        """Whether there are steps to take, and not too many consecutive ones were skipped."""
        return (state.step < until) & (state.skipped_in_a_row <= self.max_skipped)


def init_loop(algorithm: Algorithm | Newton, params: PyTree, *, averages: bool = False) -> LoopState:
    """The state before the first step.

    Weak types are made strong, as a step would make them: a state of other types would be compiled for twice.
    """
    is_spread = not jax.sharding.get_abstract_mesh().empty
    return (_init if is_spread else tiered_jit(_init))(algorithm, params, averages)


def _init(algorithm: Algorithm | Newton, params: PyTree, averages: bool) -> LoopState:
    zero = jnp.zeros((), jnp.int32)
    state = LoopState(algorithm.init(params), TailAverage(params, zero) if averages else None, zero, zero)
    return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)


def take_step(
    algorithm: Algorithm | Newton, policy: StepPolicy, key: Key[Array, ""], state: LoopState
) -> tuple[LoopState, History]:
    """One step, and its diagnostics; its randomness is a function of the key and the number of the step.

    A step that would leave the finite numbers is skipped: all but the number of the step stays as it was. One skipped
    step too many in a row is not counted either, and marks the end.
    """
    own, following = (jax.random.fold_in(key, state.step + ahead) for ahead in (0, 1))
    moved, info = algorithm.step(own, state.algorithm, next_key=following)
    before, after = ((one.params, one.optimizer) for one in (state.algorithm, moved))
    is_finite = _stays_finite(*map(algorithm.must_stay_finite, (moved, state.algorithm)))
    moves = is_finite & (state.step >= policy.warm_up)
    params, optimizer = select(moves, after, before)
    average = state.average
    if average is not None:
        average = average.include(params, moves & (state.step >= policy.average_after))
    skipped = jnp.where(is_finite, 0, state.skipped_in_a_row + 1)
    kept = AlgorithmState(params, optimizer, select(is_finite, moved.gradient, state.algorithm.gradient))
    state = LoopState(kept, average, state.step + (skipped <= policy.max_skipped), skipped)
    return constrain_state((state, History.from_info(info, ~is_finite)))


def _stays_finite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether no number has become infinite or NaN; an optimiser may keep infinite ones from the start."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    kept = [jnp.all(jnp.isfinite(n) | ~jnp.isfinite(o)) for n, o in pairs if jnp.issubdtype(n.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(kept)) if kept else jnp.array(True)
