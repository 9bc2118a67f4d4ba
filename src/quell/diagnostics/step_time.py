# SPDX-License-Identifier: Apache-2.0
"""What variates cost: compiled steps with and without them, measured side by side."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from quell.core.compilation import quick_lower
from quell.diagnostics.subset import keep_variates
from quell.gradient import Gradient, GradientState

_ROUNDS = 21
_CALL_SECONDS = 0.004
_MOST_STEPS = 2000


class StepTimes(NamedTuple):
    """Times of a step.

    Attributes:
        seconds: of a step with all variates; the median of the rounds.
        relative: time of a step with a part of the variates over that with all, by the part's name; the median of
            the ratios within each round. FactoredGradient whose turn did not come are absent.
    """

    seconds: float
    relative: dict[str, float]


def step_times(
    key: Key[Array, ""],
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    *,
    parts: Mapping[str, Sequence[int]],
    budget: float,
) -> StepTimes:
    """Measure a step with all variates against steps with parts of them, in alternation.

    Args:
        key: for the draws.
        gradient: with all variates.
        params: where to measure.
        state: of the gradient.
        parts: places of the variates to keep, by name.
        budget: seconds for compilation, most of the time needed; parts are compiled in turn until it is spent.
    """
    kept = {"": (gradient, state)} | {name: keep_variates(gradient, state, keep) for name, keep in parts.items()}
    programs = _compile({name: (one, key, params, before) for name, (one, before) in kept.items()}, budget)
    idle = {name: min(program(0) for _ in range(3)) for name, program in programs.items()}
    num = _enough_steps(lambda steps: programs[""](steps) - idle[""])
    rounds = [
        {name: max(program(num) - idle[name], 1e-9) for name, program in programs.items()} for _ in range(_ROUNDS)
    ]
    relative = {name: float(np.median([r[name] / r[""] for r in rounds])) for name in programs if name}
    return StepTimes(float(np.median([r[""] for r in rounds])) / num, relative)


def _enough_steps(seconds: Callable[[int], float]) -> int:
    """How many steps make a call long enough to be timed."""
    probe = 8
    once = min(seconds(probe) for _ in range(3)) / probe
    return int(np.clip(_CALL_SECONDS / max(once, 1e-9), 1, _MOST_STEPS))


def _compile(arguments: Mapping[str, tuple[Any, ...]], budget: float) -> dict[str, Callable[[int], float]]:
    """Compile programs side by side, and return those that were begun before the budget was spent.

    Threads share compilation alone. A model may be traced by one at a time (NumPyro keeps one stack of handlers), and
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
    return {name: _timer(running[name].result(), arguments[name]) for name in begun}


def _timer(program: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[int], float]:
    """Seconds that a number of steps take."""

    def run(num: int) -> float:
        start = time.perf_counter()
        jax.block_until_ready(program(*arguments, jnp.asarray(num), jnp.zeros(())))
        return time.perf_counter() - start

    return run


def _take_steps(
    gradient: Gradient,
    key: Key[Array, ""],
    params: PyTree,
    state: GradientState,
    num_steps: Int[Array, ""],
    rate: Float[Array, ""],
) -> Any:
    """Steps of length zero: the compiler does not know the rate, so that nothing is computed once for all of them."""

    def body(step: Int[Array, ""], carry: tuple[PyTree, GradientState]) -> tuple[PyTree, GradientState]:
        now, before = carry
        grad, after, _ = gradient.update(jax.random.fold_in(key, step), now, before)
        moved = jax.tree.map(lambda p, g: p - jnp.nan_to_num(rate.astype(p.dtype) * g), now, grad)
        return moved, after

    return jax.lax.fori_loop(0, num_steps, body, (params, state))
