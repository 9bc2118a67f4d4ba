# SPDX-License-Identifier: Apache-2.0
"""One of our gradients with Adam."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from experiments.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from experiments.bench.problems import BenchProblem
from experiments.bench.runner import AbstractRunner, Axis, Setting
from quell.core.compilation import quick_options
from quell.fit import Algorithm, AlgorithmState
from quell.fit.plan import FitPlan
from quell.gradient import Gradient


class Hyper(NamedTuple):
    """The rate of Adam, and the steps in which it decays to zero."""

    rate: Float[Array, ""]
    length: Float[Array, ""]

    def optimizer(self) -> optax.GradientTransformation:
        """Adam with cosine decay; an infinite length makes the rate constant."""
        return optax.adam(lambda count: self.rate * cosine_decay(count, self.length))


def cosine_decay(count: Any, length: Any) -> Any:
    """From 1 to 0 on half a cosine; 1 for an infinite length."""
    return 0.5 * (1.0 + jnp.cos(math.pi * jnp.minimum(count / length, 1.0)))


class RunState(NamedTuple):
    """State of a run; during the warm-up steps the weights are learned and the parameters stay."""

    algorithm: AlgorithmState
    hyper: Hyper
    key: Key[Array, ""]
    step: Int[Array, ""]
    warmup_steps: Int[Array, ""]


class AdamRunner(AbstractRunner):
    """A gradient, with Adam of a chosen rate.

    Args:
        bench: the problem.
        gradient: of the steps.
        label: for the table.
        axes: of Adam.
        plan: of an automatic fit whose start is used: a warm start on a subset of many rows, and warm-up steps if the
            gradient has variates; `None` for neither.
    """

    def __init__(
        self,
        bench: BenchProblem,
        gradient: Gradient,
        label: str,
        axes: Mapping[str, Axis],
        plan: FitPlan | None = None,
    ) -> None:
        """Nothing is compiled yet."""
        self.bench, self.label, self.axes = bench, label, axes
        self.gradient = gradient
        self.warmup_steps = int(plan.policy.warm_up) if plan is not None and gradient.variates else 0
        self._warm_start = None
        if plan is not None and plan.warm_start is not None:
            self._warm_start = plan.first_params
            self.label += f", warm start on {plan.warm_start} rows"
        self._arrays, static = eqx.partition(gradient, eqx.is_array)

        def advance(arrays: Any, state: RunState, until: Int[Array, ""]) -> RunState:
            return _advance(eqx.combine(arrays, static), state, until)

        self._advance = jax.jit(advance, compiler_options=quick_options(jax.default_backend()))

    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> RunState:
        hyper = Hyper(jnp.asarray(setting["rate"], float), jnp.asarray(setting["length"], float))
        algorithm = Algorithm(self.gradient, hyper.optimizer())
        params = params_of(isotropic(mean, setting["scale"], full_rank=self.bench.full_rank))
        counts = jnp.zeros((), jnp.int32), jnp.asarray(self.warmup_steps, jnp.int32)
        state = RunState(algorithm.init(params), hyper, key, *counts)
        return jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), state)

    def advance(self, state: RunState, until: int) -> RunState:
        if self._warm_start is not None and int(state.step) == 0:
            params = self._warm_start(state.key, state.algorithm.params)
            state = state._replace(algorithm=eqx.tree_at(lambda a: a.params, state.algorithm, params))
        return self._advance(self._arrays, state, np.int32(until))

    def gaussian(self, state: RunState) -> Gaussian:
        return gaussian_of(state.algorithm.params)

    def most_steps(self, setting: Setting) -> float | int:
        return super().most_steps(setting) + self.warmup_steps


def _advance(gradient: Gradient, state: RunState, until: Int[Array, ""]) -> RunState:
    """Steps in one compiled loop; the number of steps is an argument."""
    algorithm = Algorithm(gradient, state.hyper.optimizer())

    def body(now: RunState) -> RunState:
        reached, _ = algorithm.step(jax.random.fold_in(now.key, now.step), now.algorithm)
        waiting = eqx.tree_at(lambda a: a.gradient, now.algorithm, reached.gradient)
        kept = jax.tree.map(lambda new, old: jnp.where(now.step < now.warmup_steps, old, new), reached, waiting)
        return now._replace(algorithm=kept, step=now.step + 1)

    return jax.lax.while_loop(lambda now: now.step < until, body, state)
