# SPDX-License-Identifier: Apache-2.0
"""The steps of `quell.fit`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from experiments.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import AbstractRunner, Axis, Setting, structure_label
from quell.core.compilation import quick_options
from quell.estimators import BonnetPrice, ClosedForm
from quell.fit import FitOptions
from quell.fit.defaults import NOISE_CHECK_STEP
from quell.fit.method import NOISE_WINDOW
from quell.fit.plan import FitPlan
from quell.fit.step import LoopState, take_step
from quell.gradient import Gradient

START_SCALE = 0.1
"""Of the families' own initial scale."""

Program = Callable[[LoopState, Array, Array, np.int32], tuple[LoopState, Array]]
"""Takes steps up to a given number; arguments are the state, the last squared norms, the key and that number."""


class FitState(NamedTuple):
    """State of a fit.

    Args:
        loop: parameters and all that belongs to them.
        key: of the fit.
        base: name of the base gradient in use; empty where nothing is chosen.
        sq_norms: of the gradients of the last steps.
    """

    loop: LoopState
    key: Key[Array, ""]
    base: str
    sq_norms: Float[Array, "last"]


class FitRunner(AbstractRunner):
    """The steps of `quell.fit`, with its warm start and the noise check after the first steps.

    Args:
        bench: the problem.
        options: of the fit.
    """

    axes: Mapping[str, Axis] = {}

    def __init__(self, bench: BenchProblem, options: FitOptions, label: str = "") -> None:
        """Nothing is chosen or compiled yet."""
        self.bench, self.options, self.label = bench, options, label
        self._plans: dict[str, tuple[FitPlan, Program]] = {}
        self._first = ""

    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> FitState:
        if not self._plans:
            params = params_of(isotropic(mean, START_SCALE, full_rank=self.bench.full_rank))
            options = dataclasses.replace(self.options, params=params)
            plan = FitPlan.of(options, self.bench.problem.model, self.bench.problem.family, key)
            self.label = ", ".join(word for word in (self.label, gradient_label(plan.algorithm.gradient)) if word)
            self._first = _base_of(plan)
            self._plans[self._first] = plan, _program_of(plan)
        return FitState(self._plans[self._first][0].start, key, self._first, jnp.full(NOISE_WINDOW, jnp.inf))

    def advance(self, state: FitState, until: int) -> FitState:
        step = int(state.loop.step)
        if step == 0:
            params = self._plans[state.base][0].first_params(state.key, state.loop.params)
            state = state._replace(loop=eqx.tree_at(lambda s: s.algorithm.params, state.loop, params))
        if step < NOISE_CHECK_STEP <= until and state.base == "second order":
            state = self._checked_noise(self._run(state, NOISE_CHECK_STEP))
        return self._run(state, until)

    @property
    def warm_steps(self) -> int:
        return NOISE_CHECK_STEP + 1 if self._first == "second order" else super().warm_steps

    def _run(self, state: FitState, until: int) -> FitState:
        loop, sq_norms = self._plans[state.base][1](state.loop, state.sq_norms, state.key, np.int32(until))
        return state._replace(loop=loop, sq_norms=sq_norms)

    def _checked_noise(self, state: FitState) -> FitState:
        """Check the noise, and switch to another gradient where there is too much."""
        plan = self._plans[state.base][0]
        changed = plan.after_noise_check(state.loop.params, np.asarray(state.sq_norms).tolist())
        if changed is plan:
            return state
        if (base := _base_of(changed)) not in self._plans:
            self._plans[base] = changed, _program_of(changed)
            self.label += f", then {gradient_label(changed.algorithm.gradient)}"
        loop = eqx.tree_at(lambda s: s.algorithm.gradient, state.loop, changed.start.algorithm.gradient)
        return state._replace(loop=loop, base=base)

    def gaussian(self, state: FitState) -> Gaussian:
        return gaussian_of(state.loop.params)


def gradient_label(gradient: Gradient) -> str:
    """Rows, samples and variates of a gradient."""
    if gradient.base.data == ClosedForm(full_data=True):
        return "exact gradient on all rows"
    names = gradient.names
    rows = structure_label(gradient.sampler.batch_size, gradient.sampler.num_replicates)
    base = "second order" if isinstance(gradient.base.data, BonnetPrice) else "base"
    return f"{rows}, {' + '.join([base, *names])}"


def _base_of(plan: FitPlan) -> str:
    return "" if plan.choice is None else plan.choice.base


def _program_of(plan: FitPlan) -> Program:
    arrays, static = eqx.partition((plan.algorithm, plan.policy), eqx.is_array)

    def advance(
        arrays: Any, state: LoopState, sq_norms: Float[Array, "last"], key: Key[Array, ""], until: Int[Array, ""]
    ) -> tuple[LoopState, Float[Array, "last"]]:
        algorithm, policy = eqx.combine(arrays, static)

        def step(now: tuple[LoopState, Float[Array, "last"]]) -> tuple[LoopState, Float[Array, "last"]]:
            after, info = take_step(algorithm, policy, key, now[0])
            return after, jnp.append(now[1][1:], info.base_sq_norm.astype(sq_norms.dtype))

        return jax.lax.while_loop(lambda now: policy.is_going(now[0], until), step, (state, sq_norms))

    program = jax.jit(advance, compiler_options=quick_options(jax.default_backend()))
    return functools.partial(program, arrays)
