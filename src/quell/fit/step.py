# SPDX-License-Identifier: Apache-2.0
"""One step of a fit: taken, skipped or part of the warm-up; and the average of the last iterates."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.devices import constrain_state
from quell.fit.algorithm import Algorithm, AlgorithmState
from quell.gradient import GradientInfo


class TailAverage(eqx.Module):
    """A running average of parameters.

    Args:
        mean: of the iterates taken in so far, shaped like the parameters.
        count: how many they are.

    References: Polyak & Juditsky (1992), "Acceleration of stochastic approximation by averaging".
    """

    mean: PyTree
    count: Int[Array, ""]

    @classmethod
    def empty(cls, params: PyTree) -> "TailAverage":
        """Nothing taken in yet."""
        return cls(jax.tree.map(jnp.zeros_like, params), jnp.zeros((), jnp.int32))

    def include(self, params: PyTree, wanted: Bool[Array, ""]) -> "TailAverage":
        """Take in one iterate, or leave the average as it is."""
        count = self.count + wanted

        def moved(old: Array, new: Array) -> Array:
            return jnp.where(wanted, old + (new - old) / jnp.maximum(count, 1).astype(old.dtype), old)

        return TailAverage(jax.tree.map(moved, self.mean, params), count)

    def or_last(self, params: PyTree) -> PyTree:
        """The average, or the last iterate where nothing was taken in."""
        return jax.tree.map(lambda mean, last: jnp.where(self.count > 0, mean, last), self.mean, params)


class LoopState(eqx.Module):
    """State of a fit between steps.

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

    @property
    def best_params(self) -> PyTree:
        """The average where there is one, else the last iterate."""
        return self.params if self.average is None else self.average.or_last(self.params)


class StepPolicy(eqx.Module):
    """Which steps move, are skipped and are averaged; stored as arrays to avoid recompilation.

    Args:
        max_skipped: most consecutive steps that may be skipped because they are not finite.
        average_after: the iterates of steps after this many are averaged.
        warm_up: number of first steps that learn weights and leave the parameters where they are.
    """

    max_skipped: Int[Array, ""]
    average_after: Int[Array, ""]
    warm_up: Int[Array, ""]

    @classmethod
    def of(cls, *, max_skipped: int = 0, average_after: int = 0, warm_up: int = 0) -> "StepPolicy":
        """From plain numbers."""
        return cls(*(jnp.asarray(number, jnp.int32) for number in (max_skipped, average_after, warm_up)))


class StepInfo(eqx.Module):
    """Per-step diagnostics of a fit.

    Args:
        gradient: those of the gradient.
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
    kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state.algorithm)
    moves = state.step >= policy.warm_up
    before, after = ((one.params, one.optimizer) for one in (state.algorithm, kept))
    params, optimizer = jax.tree.map(lambda new, old: jnp.where(moves, new, old), after, before)
    kept = AlgorithmState(params, optimizer, kept.gradient)
    in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
    average = state.average
    if average is not None:
        average = average.include(kept.params, finite & moves & (state.step >= policy.average_after))
    counts = in_a_row <= policy.max_skipped
    return constrain_state((LoopState(kept, average, state.step + counts, in_a_row), StepInfo(info, ~finite)))


def _stays_finite(new: PyTree, old: PyTree) -> Bool[Array, ""]:
    """Whether no number has become infinite or NaN; an optimiser may keep infinite ones from the start."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    kept = [jnp.all(jnp.isfinite(n) | ~jnp.isfinite(o)) for n, o in pairs if jnp.issubdtype(n.dtype, jnp.inexact)]
    return jnp.all(jnp.stack(kept)) if kept else jnp.array(True)
