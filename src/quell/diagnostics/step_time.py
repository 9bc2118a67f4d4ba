# SPDX-License-Identifier: Apache-2.0
"""What variates cost: compiled steps with all and with some of them, timed side by side."""

import dataclasses
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

from quell.combine import NormalWishart, Rule
from quell.core.compilation import quick_lower
from quell.gradient import Gradient, GradientState

_ROUNDS = 21
_CALL_SECONDS = 0.004
_MOST_STEPS = 2000


class StepTimes(NamedTuple):
    """Times per step.

    Attributes:
        seconds: per step with all variates; the median of the rounds.
        relative: time per step with a subset of the variates over that with all, by the subset's name; the median of
            the ratios within each round. Subsets that were not compiled within the budget are absent.
    """

    seconds: float
    relative: dict[str, float]


def step_times(
    key: Key[Array, ""],
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    *,
    subsets: Mapping[str, Sequence[int]],
    budget: float,
) -> StepTimes:
    """Time a step with all variates against steps with subsets of them, in alternation.

    Args:
        key: for the draws.
        gradient: with all variates.
        params: where to measure.
        state: of the gradient.
        subsets: indices of the variates to keep, by name.
        budget: seconds for compilation, which takes most of the time; subsets are compiled in turn until it is spent.
    """
    kept = {"": (gradient, state)} | {name: keep_variates(gradient, state, keep) for name, keep in subsets.items()}
    programs = _compile({name: (one, key, params, before) for name, (one, before) in kept.items()}, budget)
    overhead = {name: min(program(0) for _ in range(3)) for name, program in programs.items()}
    num = _enough_steps(lambda steps: programs[""](steps) - overhead[""])
    rounds = [
        {name: max(program(num) - overhead[name], 1e-9) for name, program in programs.items()} for _ in range(_ROUNDS)
    ]
    relative = {name: float(np.median([r[name] / r[""] for r in rounds])) for name in programs if name}
    return StepTimes(float(np.median([r[""] for r in rounds])) / num, relative)


def keep_variates(gradient: Gradient, state: GradientState, keep: Sequence[int]) -> tuple[Gradient, GradientState]:
    """A gradient with some of its variates, and its state with what was learned for these.

    Args:
        gradient: with all variates.
        state: of that gradient.
        keep: indices of variates.
    """
    rows = [0, *(k + 1 for k in keep)]
    smaller = dataclasses.replace(
        gradient,
        variates=tuple(gradient.variates[k] for k in keep),
        rule=_rule_of(gradient.rule, list(keep)),
    )

    def cut(leaf: Array) -> Array:
        return leaf if leaf.ndim == 0 else jnp.asarray(np.asarray(leaf)[..., rows, :][..., rows])

    moments = jax.tree.map(cut, state.moments)
    return smaller, GradientState(moments, tuple(state.variates[k] for k in keep))


def _rule_of(rule: Rule, keep: list[int]) -> Rule:
    if rule.prior is None:
        return rule
    gram, cross = (np.asarray(trace) for trace in (rule.prior.gram, rule.prior.cross))
    prior = NormalWishart(jnp.asarray(gram[keep][:, keep]), jnp.asarray(cross[keep]), rule.prior.strength)
    return dataclasses.replace(rule, prior=prior)


def _enough_steps(seconds: Callable[[int], float]) -> int:
    """How many steps make a call long enough to be timed."""
    probe = 8
    once = min(seconds(probe) for _ in range(3)) / probe
    return int(np.clip(_CALL_SECONDS / max(once, 1e-9), 1, _MOST_STEPS))


def _compile(arguments: Mapping[str, tuple[Any, ...]], budget: float) -> dict[str, Callable[[int], float]]:
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
    """Steps of length zero; the compiler does not know the rate, so that it cannot hoist anything out of the loop."""

    def body(step: Int[Array, ""], carry: tuple[PyTree, GradientState]) -> tuple[PyTree, GradientState]:
        now, before = carry
        grad, after, _ = gradient.update(jax.random.fold_in(key, step), now, before)
        moved = jax.tree.map(lambda p, g: p - jnp.nan_to_num(rate.astype(p.dtype) * g), now, grad)
        return moved, after

    return jax.lax.fori_loop(0, num_steps, body, (params, state))
