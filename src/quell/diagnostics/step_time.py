# SPDX-License-Identifier: Apache-2.0
"""What variates cost: compiled steps with all and with some of them, timed side by side."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from quell.core.compilation import quick_lower
from quell.gradient import Gradient, GradientState

_ROUNDS = 21
_PROBE_STEPS, _MOST_STEPS = 8, 2000
_CALL_SECONDS = 0.004


def step_times(
    key: Key[Array, ""],
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    *,
    subsets: Mapping[str, Sequence[int]],
    budget: float,
) -> tuple[float, dict[str, float]]:
    """Time a step with all variates against steps with subsets of them, in alternation.

    Args:
        key: for the draws.
        gradient: with all variates.
        params: where to measure.
        state: of the gradient.
        subsets: indices of the variates to keep, by name.
        budget: seconds for compilation, which takes most of the time; subsets are compiled in turn until it is spent.

    Returns:
        Seconds per step with all variates, and the time per step with each subset relative to it, by name: medians
        over the rounds. Subsets that were not compiled within the budget are absent.
    """
    kept = {"": range(len(gradient.variates)), **subsets}
    arguments = {name: (*_keep_variates(gradient, params, state, keep), key, params) for name, keep in kept.items()}
    programs = _compile(arguments, budget)

    def seconds(name: str, num: int) -> float:
        start = time.perf_counter()
        jax.block_until_ready(programs[name](*arguments[name], jnp.asarray(num), jnp.zeros(())))
        return time.perf_counter() - start

    overhead = {name: min(seconds(name, 0) for _ in range(3)) for name in programs}
    probe = min(seconds("", _PROBE_STEPS) for _ in range(3)) - overhead[""]
    num = int(np.clip(_CALL_SECONDS * _PROBE_STEPS / max(probe, 1e-9), 1, _MOST_STEPS))
    rounds = [{name: max(seconds(name, num) - overhead[name], 1e-9) for name in programs} for _ in range(_ROUNDS)]
    relative = {name: float(np.median([r[name] / r[""] for r in rounds])) for name in programs if name}
    return float(np.median([r[""] for r in rounds])) / num, relative


def _keep_variates(
    gradient: Gradient, params: PyTree, state: GradientState, keep: Sequence[int]
) -> tuple[Gradient, GradientState]:
    """A gradient with some of its variates and a state that takes as long; what the weights have learned does not."""
    rule = dataclasses.replace(gradient.rule, prior=None)
    smaller = dataclasses.replace(gradient, variates=tuple(gradient.variates[k] for k in keep), rule=rule)
    return smaller, GradientState(smaller.init_moments(params), tuple(state.variates[k] for k in keep))


def _compile(arguments: Mapping[str, tuple[Any, ...]], budget: float) -> dict[str, Callable[..., Any]]:
    """Compile programs in parallel, and return those that were begun before the budget was spent.

    Threads share compilation alone. A model must be traced by one at a time (NumPyro keeps one stack of handlers), and
    two programs that run at once in one process may wait for each other for ever.
    """
    began = time.perf_counter()
    running: dict[str, Future[Callable[..., Any]]] = {}
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for name, some in arguments.items():
            if running and time.perf_counter() - began > budget:
                break
            lowered = quick_lower(_take_steps, *some, jnp.asarray(1), jnp.zeros(()))
            running[name] = pool.submit(lowered.compile)
        wait(running.values(), timeout=None if math.isinf(budget) else max(0.0, budget + began - time.perf_counter()))
        begun = [name for name, future in running.items() if not future.cancel()]
    return {name: running[name].result() for name in begun}


def _take_steps(
    gradient: Gradient,
    state: GradientState,
    key: Key[Array, ""],
    params: PyTree,
    num_steps: Int[Array, ""],
    rate: Float[Array, ""],
) -> Any:
    """Steps of length zero; the compiler does not know the rate, so that it cannot hoist anything out of the loop."""

    def body(step: Int[Array, ""], carry: tuple[PyTree, GradientState]) -> tuple[PyTree, GradientState]:
        now, before = carry
        grad, after, _ = gradient.update(jax.random.fold_in(key, step), now, before)
        moved = jax.tree.map(lambda p, g: p - jnp.nan_to_num(rate.astype(p.dtype) * g), now, grad)
        return moved, after

    return jax.lax.fori_loop(0, num_steps, body, (params, state))
