# SPDX-License-Identifier: Apache-2.0
"""The steps of `quell.fit`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from experiments.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import AbstractRunner, Axis, Setting, structure_label
from quell.core.compilation import quick_options
from quell.estimators import ClosedForm
from quell.fit import FitOptions
from quell.fit.algorithm import Algorithm
from quell.fit.common_draws import ExactElbo
from quell.fit.newton import Newton
from quell.fit.plan import FitPlan
from quell.fit.step import LoopState, take_step
from quell.gradient import Gradient

START_SCALE = 0.1
"""Of the families' own initial scale."""

Program = Callable[[LoopState, Array, np.int32], LoopState]
"""Takes steps up to a given number; arguments are the state, the key and that number."""


class FitState(NamedTuple):
    """State of a fit.

    Args:
        loop: parameters and all that belongs to them.
        key: of the fit.
        attempt: number of the plan that is run.
        before: steps of the plans before it.
    """

    loop: LoopState
    key: Key[Array, ""]
    attempt: int = 0
    before: int = 0


class FitRunner(AbstractRunner):
    """The steps of `quell.fit`, with its warm start. A fit that has ended stays where it is.

    Where Newton steps on draws give up, sampled gradients follow, as in a fit.

    Args:
        bench: the problem.
        options: of the fit.
    """

    axes: Mapping[str, Axis] = {}

    def __init__(self, bench: BenchProblem, options: FitOptions, label: str = "") -> None:
        """Nothing is chosen or compiled yet."""
        self.bench, self.options, self.label = bench, options, label
        self._made: list[tuple[FitPlan, Program]] = []

    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> FitState:
        if not self._made:
            params = params_of(isotropic(mean, START_SCALE, full_rank=self.bench.full_rank))
            given = dataclasses.replace(self.options, params=params), *self.bench.model_and_family, key
            plan = FitPlan.of(*given)
            self.label = ", ".join(word for word in (self.label, algorithm_label(plan.algorithm)) if word)
            self._made.append((plan, _program_of(plan)))
            if isinstance(plan.algorithm, Newton) and not plan.algorithm.objective.is_exact:
                following = FitPlan.of(*given, may_take_newton=False)
                self._made.append((following, _program_of(following)))
                self.advance(FitState(following.start, key, 1), 1)  # compiles it
        return FitState(self._made[0][0].start, key)

    def advance(self, state: FitState, until: int) -> FitState:
        plan, program = self._made[state.attempt]
        loop = state.loop
        if int(loop.step) == 0:
            params = plan.first_params(state.key, loop.params)
            if params is not loop.params:
                loop = eqx.tree_at(lambda s: s.algorithm.params, loop, params)
        state = state._replace(loop=program(loop, state.key, np.int32(until - state.before)))
        if state.attempt + 1 == len(self._made) or not bool(state.loop.algorithm.optimizer.has_given_up):
            return state
        before = int(state.loop.step)
        state = FitState(self._made[state.attempt + 1][0].start, state.key, state.attempt + 1, before)
        return self.advance(state, until) if before < until else state

    def taken(self, state: FitState, until: int) -> int:
        return state.before + int(state.loop.step)

    def gaussian(self, state: FitState) -> Gaussian:
        return gaussian_of(state.loop.params)


def algorithm_label(algorithm: Algorithm | Newton) -> str:
    """That of its gradient, or of Newton steps."""
    if not isinstance(algorithm, Newton):
        return gradient_label(algorithm.gradient)
    objective = algorithm.objective
    is_exact = isinstance(objective, ExactElbo)
    return f"Newton steps on {'the exact ELBO' if is_exact else f'blocks of {2 * objective.pairs} draws'}"


def gradient_label(gradient: Gradient) -> str:
    """Rows, samples and variates of a gradient."""
    if gradient.base.data == ClosedForm(full_data=True):
        return "exact gradient on all rows"
    rows = structure_label(gradient.sampler.batch_size, gradient.sampler.num_replicates)
    return f"{rows}, {' + '.join(['base', *gradient.names])}"


def _program_of(plan: FitPlan) -> Program:
    arrays, static = eqx.partition((plan.algorithm, plan.policy), eqx.is_array)

    def advance(arrays: Any, state: LoopState, key: Key[Array, ""], until: Int[Array, ""]) -> LoopState:
        algorithm, policy = eqx.combine(arrays, static)

        def is_going(now: LoopState) -> Bool[Array, ""]:
            return policy.is_going(now, until) & ~algorithm.has_ended(now.algorithm)

        return jax.lax.while_loop(is_going, lambda now: take_step(algorithm, policy, key, now)[0], state)

    program = jax.jit(advance, compiler_options=quick_options(jax.default_backend()))
    return functools.partial(program, arrays)
