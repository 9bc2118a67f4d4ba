# SPDX-License-Identifier: Apache-2.0
"""One timed run: only `advance` is timed; the ELBO along the way is evaluated off the clock."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Float, Key

from experiments.bench.gaussian import Gaussian
from experiments.bench.runner import AbstractRunner, Setting

TARGETS = (1.0, 0.1)
"""Nats below the optimum whose times are reported."""

_GROWTH = 0.1
_EVALUATED_EVERY = 5
_TIMED_S = 0.02
_STARTS = 5
_STALLED_AFTER = 2000
_NEAR = 5.0

ElboFunction = Callable[[Gaussian], float]


@dataclasses.dataclass(frozen=True)
class Goal:
    """The target of a run, and how its progress is measured.

    Attributes:
        elbo: of a Gaussian.
        optimum: at which runs stop.
        beyond: nats above the optimum at which runs stop instead, where a better optimum may be found; then the ELBO is
            evaluated at all points near the optimum.
        elbo_s: seconds per evaluation of the ELBO; evaluations along the way are at least that far apart.
    """

    elbo: ElboFunction
    optimum: float
    beyond: float = 0.0
    elbo_s: float = 0.0


@dataclasses.dataclass(frozen=True)
class TimedRun:
    """Points of one run at which the ELBO was evaluated.

    Attributes:
        seconds: on the clock.
        steps: taken until then.
        elbos: in nats.
    """

    seconds: tuple[float, ...]
    steps: tuple[int, ...]
    elbos: tuple[float, ...]

    def seconds_to(self, optimum: float, nats: float) -> float:
        """Time of the first point within some nats of the optimum; infinite if there is none."""
        pairs = zip(self.seconds, self.elbos, strict=True)
        return next((seconds for seconds, elbo in pairs if optimum - elbo <= nats), math.inf)

    @property
    def us_per_step(self) -> float:
        """Microseconds per step, over the whole run."""
        return 1e6 * self.seconds[-1] / self.steps[-1]


@dataclasses.dataclass(frozen=True)
class Timing:
    """Times of a program.

    Attributes:
        compile_s: seconds of the first start and the first step, and of what is compiled later.
        step_s: seconds per step after compilation.
        start_s: seconds of a chunk without steps; zero for a method that takes only one step.
    """

    compile_s: float
    step_s: float
    start_s: float = 0.0


def warm_up(runner: AbstractRunner, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> Timing:
    """Compile, then double the chunk until it is long enough to time its steps."""
    began = time.perf_counter()
    elapsed, state = _timed(runner, runner.start(key, mean, setting), 1)
    compile_s, steps, until = time.perf_counter() - began, 1, 2
    while until <= runner.most_steps(setting) and (until < 2 * runner.warm_steps or elapsed < _TIMED_S):
        elapsed, after = _timed(runner, state, until)
        if elapsed >= _TIMED_S:  # a method may switch to another program on the way
            first, (elapsed, after) = elapsed, _timed(runner, state, until)
            compile_s += max(first - elapsed, 0.0)
        before, taken = runner.taken(state, until // 2), runner.taken(after, until)
        steps = max(taken - before, 1)
        state, until = after, 2 * until
        if taken < until // 2:
            break
    if until == 2:
        return Timing(compile_s, elapsed)
    start_s = min(_timed(runner, state, until // 2)[0] for _ in range(_STARTS))
    return Timing(compile_s, max(elapsed - start_s, 0.0) / steps, start_s)


def time_run(
    runner: AbstractRunner,
    state: Any,
    goal: Goal,
    *,
    limit: float,
    most_steps: float | int = math.inf,
    start_s: float = 0.0,
) -> TimedRun:
    """Advance until the ELBO is within a tenth of a nat, a limit is reached, or the run has stalled.

    Chunks are of one step at first and then of a tenth of the steps so far. The ELBO is evaluated at every fifth point
    along the way, or less often where it is slow; and afterwards at the points before the first one within each target.
    The start of a chunk is on the clock once: chunks are for the evaluation, and a fit is one program.

    Args:
        runner: the program.
        state: from its `start`.
        goal: the target.
        limit: maximum seconds on the clock.
        most_steps: after which nothing changes any more.
        start_s: seconds of starting a chunk.
    """
    seconds, steps, points, elbos, next_s = [0.0], [0], [runner.gaussian(state)], {}, goal.elbo_s
    while True:
        until = int(min(steps[-1] + max(1, int(_GROWTH * steps[-1])), most_steps))
        elapsed, state = _timed(runner, state, until)
        seconds.append(seconds[-1] + max(elapsed - start_s, 0.0) if steps[-1] else elapsed)
        steps.append(runner.taken(state, until))
        points.append(runner.gaussian(state))
        last = len(points) - 1
        is_over = steps[-1] < until or until >= most_steps or seconds[-1] >= limit
        if is_over or (last % _EVALUATED_EVERY == 0 and seconds[-1] >= next_s):
            elbos[last], next_s = goal.elbo(points[last]), seconds[-1] + goal.elbo_s
            gap = goal.optimum + goal.beyond - elbos[last]
            if is_over or gap <= TARGETS[-1] or not math.isfinite(gap) or _is_stalled(elbos, steps, most_steps):
                break
    for target in TARGETS:
        _fill(elbos, points, goal.elbo, goal.optimum - target)
    if goal.beyond:
        _fill_from(elbos, points, goal.elbo, goal.optimum - _NEAR)
    known = sorted(elbos)
    return TimedRun(
        tuple(seconds[k] for k in known), tuple(steps[k] for k in known), tuple(float(elbos[k]) for k in known)
    )


def _timed(runner: AbstractRunner, state: Any, until: int) -> tuple[float, Any]:
    began = time.perf_counter()
    state = jax.block_until_ready(runner.advance(state, until))
    return time.perf_counter() - began, state


def _fill(elbos: dict[int, float], points: list[Gaussian], elbo_of: ElboFunction, level: float) -> None:
    """Evaluate the points between the last known one below a level and the first above it, by bisection if many."""
    while (first := next((k for k in sorted(elbos) if elbos[k] >= level), None)) is not None:
        before = max((k for k in elbos if k < first), default=0)
        if first - before <= _EVALUATED_EVERY:
            for k in range(before + 1, first):
                elbos[k] = elbo_of(points[k])
            return
        middle = (before + first) // 2
        elbos[middle] = elbo_of(points[middle])


def _fill_from(elbos: dict[int, float], points: list[Gaussian], elbo_of: ElboFunction, level: float) -> None:
    """Evaluate all points from the last known one below a level on."""
    first = next((k for k in sorted(elbos) if elbos[k] >= level), None)
    if first is None:
        return
    before = max((k for k in elbos if k < first), default=0)
    for k in range(before + 1, max(elbos)):
        if k not in elbos:
            elbos[k] = elbo_of(points[k])


def _is_stalled(elbos: dict[int, float], steps: list[int], most_steps: float | int) -> bool:
    """Whether a run at a constant rate has found nothing better in the last two thirds of its steps."""
    if not math.isinf(most_steps) or steps[-1] < _STALLED_AFTER:
        return False
    early = [elbo for k, elbo in elbos.items() if steps[k] <= steps[-1] / 3]
    late = [elbo for k, elbo in elbos.items() if steps[k] > steps[-1] / 3]
    return bool(early) and max(late) <= max(early)
