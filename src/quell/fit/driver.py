# SPDX-License-Identifier: Apache-2.0
"""The host's part of a fit: it acts between chunks only."""

import dataclasses
import functools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell.core.devices import in_use
from quell.core.processes import ProcessLost, agree, are_several, first_says, hint_if_killed, is_first, process_lost
from quell.fit import loop
from quell.fit.automatic import LAST_STEPS, SETTLED
from quell.fit.callback import FitProgress
from quell.fit.checkpoint import Keeper
from quell.fit.checkpoint_file import CheckpointError
from quell.fit.history import History
from quell.fit.natural_length import natural_sq_norm
from quell.fit.plan import FitPlan
from quell.fit.progress import Report, progress_bar, wants_bar
from quell.fit.result import FitResult
from quell.fit.snapshot import Snapshot
from quell.fit.status import Status
from quell.gradient import Gradient

LEAST_GAIN = 1e-3
"""Nats; an exact fit that can gain less with a step has converged."""

EXACT_EVERY = 5
"""Steps between two looks whether an exact fit has converged; of many rows, each step is worth one."""

FIRST_RETUNED = 100
"""The step after which variates are chosen again; and then after four times as many, and so on."""

WORTHWHILE = 20.0
"""The rest of a fit must take this many times as long as the trial runs to be worth them."""

_CHUNK_SECONDS = 0.25
_FIRST_CHUNK = 16


def run_plan(plan: FitPlan) -> list[FitResult]:
    """Run the fits of a plan, go on where a checkpoint ends, and keep what is reached whatever happens."""
    with in_use(plan.options.mesh):
        return _run_plan(plan)


def _run_plan(plan: FitPlan) -> list[FitResult]:
    show = wants_bar(plan.options.progress) and is_first()
    keeper = Keeper(plan.options.checkpoint, plan.fingerprint)
    keeper.choice = None if plan.choice is None else plan.choice.spec()
    run = Run(plan, keeper.begin(plan.fresh()))
    run.check_steps()
    try:
        bar = progress_bar(plan.options.steps, first=int(run.step.max()), show=show)
        with bar as report, hint_if_killed(keeper.advice, several=are_several()):
            run.go(keeper, report)
    except KeyboardInterrupt:
        if are_several():
            raise  # the others wait for this process, and cannot know
    except (jax.errors.JaxRuntimeError, ProcessLost) as error:
        if not are_several():
            raise
        raise process_lost(error, keeper.advice) from error
    finally:
        keeper.save(run.reached)
    return run.results()


def restore_plan(plan: FitPlan) -> list[FitResult]:
    """The results as far as a checkpoint holds them; nothing is run or written."""
    return Run(plan, Keeper(plan.options.checkpoint, plan.fingerprint).read(plan.fresh())).results()


class Run:
    """Fits under way.

    Args:
        plan: what is to be done.
        reached: what is done. It is replaced as a whole, so that Ctrl-C finds state and history in step.
    """

    def __init__(self, plan: FitPlan, reached: Snapshot) -> None:
        """Look whether some of the fits have ended before."""
        self.plan, self.reached = plan, reached
        self.ended: dict[int, Status] = {}
        self.spent, self.began = reached.seconds, time.perf_counter()
        self.longest_chunk, self.step_seconds = 0.0, 0.0
        self.judge()

    def check_steps(self) -> None:
        """Refuse fewer steps than are done."""
        steps, done = self.plan.options.steps, int(self.step.max())
        if steps < done:
            raise CheckpointError(
                f"`steps` was given as {steps} for a checkpoint that holds {done}. At least {done} was needed. "
                f"Write `steps={done}`, or give another path and start anew."
            )

    @property
    def step(self) -> Int[np.ndarray, "fit"]:
        """Steps done by each fit."""
        return np.atleast_1d(jax.device_get(self.reached.state.step))

    @property
    def going(self) -> Bool[np.ndarray, "fit"]:
        """Which fits have steps to take."""
        ended = np.isin(np.arange(self.plan.num_fits), list(self.ended))
        return (self.step < self.plan.options.steps) & ~self.diverged & ~ended

    @property
    def diverged(self) -> Bool[np.ndarray, "fit"]:
        """Which fits have skipped too many steps in a row."""
        in_a_row = np.atleast_1d(jax.device_get(self.reached.state.skipped_in_a_row))
        return in_a_row > self.plan.options.max_skipped

    def go(self, keeper: Keeper, report: Report) -> None:
        """Run chunks until no fit has steps to take."""
        length = _FIRST_CHUNK
        if int(self.step.max()) == SETTLED:  # a fit that was interrupted there may not have looked yet
            self._choose_again(keeper)
        while self.going.any():
            length = agree(length)
            start, before = time.perf_counter(), self.step
            going = self.going
            ends = np.where(going, [self._end_of_chunk(int(step), length) for step in before], before)
            step, end = int(before[going].max()), int(ends[going].max())
            self._run_chunk(ends)
            seconds = time.perf_counter() - start
            self.longest_chunk = max(self.longest_chunk, seconds)
            self.step_seconds = seconds / max(end - step, 1)
            length = min(max(int((end - step) * _CHUNK_SECONDS / max(seconds, 1e-6)), 2 * _FIRST_CHUNK), loop.BUFFER)
            self.judge()
            self._choose_again(keeper)
            keeper.after_chunk(self.reached, step=end)
            recent = [pieces[-1] for pieces in self.reached.pieces]
            elbos = np.concatenate([piece.elbo for piece, is_going in zip(recent, going, strict=True) if is_going])
            if np.isfinite(elbos).any():
                report(end, float(elbos[np.isfinite(elbos)].mean()))
            self._call_back([k for k in np.flatnonzero(going).tolist() if recent[k].num_steps])

    def judge(self) -> None:
        """End fits that have converged; the history up to a fixed grid of steps decides, not the clock."""
        stopping = self.plan.options.early_stopping
        if self.plan.is_exact:
            for number in np.flatnonzero(self.going).tolist():
                if self._can_gain(number) < LEAST_GAIN:
                    self.ended[number] = Status.CONVERGED
        if stopping is None:
            return
        for number in np.flatnonzero(self.going).tolist():
            elbo = np.concatenate([piece.elbo for piece in self.reached.pieces[number]])
            if elbo.size % stopping.check_every == 0 and stopping.is_over(elbo):
                self.ended[number] = Status.CONVERGED

    def _can_gain(self, number: int) -> float:
        """Nats that a step of an exact fit could still gain: half the squared norm of its natural gradient."""
        last = self.reached.pieces[number][-1]
        if not last.num_steps or last.skipped[-1] or not np.isfinite(last.base_sq_norm[-1]):
            return np.inf
        gradient = self.plan.algorithm.gradient
        if gradient.rule.metric == "natural":
            return 0.5 * float(last.combined_sq_norm[-1])
        return float(_gain(gradient, self._member(self.reached.state.params, number)))

    def _choose_again(self, keeper: Keeper) -> None:
        """At a few fixed steps, look whether another gradient would now be better."""
        plan, step = self.plan, int(self.step.max())
        if plan.is_many or plan.tuner is None or plan.choice is None or not self.going.any():
            return
        state, tuned = self.reached.state, None
        if step == SETTLED:
            last = np.concatenate([piece.base_sq_norm for piece in self.reached.pieces[0]])[-LAST_STEPS:]
            tuned = plan.tuner.settle(state.params, state.algorithm.gradient, plan.choice, last.tolist())
        elif step in _retuned(plan.options.steps) and self._is_worth_trials(step):
            tuned = plan.tuner.again(state.params, state.algorithm.gradient, plan.choice)
        if tuned is None or tuned.state is None:
            return
        if tuned.choice.is_same(plan.choice):
            self.plan = dataclasses.replace(plan, choice=tuned.choice)
            keeper.choice = tuned.choice.spec()
            return
        changed = plan.changed(tuned)
        keeper.change(changed.fingerprint, tuned.choice.spec())
        self.plan = changed
        self.reached = self.reached._replace(state=eqx.tree_at(lambda s: s.algorithm.gradient, state, tuned.state))

    def _is_worth_trials(self, step: int) -> bool:
        """Whether what is left takes so much longer than trial runs that these do not matter."""
        assert self.plan.tuner is not None
        if are_several():
            return False  # each has a clock of its own
        trial = (self.plan.tuner.num_trials + 1) * self.longest_chunk
        return (self.plan.options.steps - step) * self.step_seconds >= WORTHWHILE * trial

    def results(self) -> list[FitResult]:
        """A result for each fit, as far as it has come."""
        histories, algorithm = self.reached.histories, self.plan.algorithm
        state = self.reached.state
        best = state.best_params if not self.plan.is_many else jax.vmap(lambda one: one.best_params)(state)
        return [
            FitResult(
                params=self._member(best, number),
                gradient=algorithm.gradient,
                state=self._member(state.algorithm.gradient, number),
                history=histories[number],
                status=self._status(number),
                seconds=self.seconds,
                choice=self.plan.choice,
            )
            for number in range(self.plan.num_fits)
        ]

    @property
    def seconds(self) -> float:
        """Spent on the fits, before an interruption too."""
        return self.spent + time.perf_counter() - self.began

    def _end_of_chunk(self, step: int, length: int) -> int:
        """Where the next chunk ends: soon, and not beyond the next step at which the host has something to do."""
        options = self.plan.options
        grids = [
            options.early_stopping.check_every if options.early_stopping else None,
            options.checkpoint.every_steps if options.checkpoint else None,
        ]
        ends = [(step // every + 1) * every for every in grids if every is not None]
        if self.plan.is_exact:
            every = EXACT_EVERY if self.plan.rough is None else 1
            ends.append((step // every + 1) * every)
        if self.plan.tuner is not None:
            ends += [again for again in (SETTLED, *_retuned(options.steps)) if again > step]
        return min(step + length, options.steps, *ends)

    def _run_chunk(self, until: Int[np.ndarray, "fit"]) -> None:
        """Take steps, and add what they told to the history."""
        plan, before = self.plan, self.step
        run = loop.run_chunks if plan.is_many else loop.run_chunk
        if plan.fit_mesh is not None:
            run = functools.partial(loop.run_spread, plan.fit_mesh)
        ends = jnp.asarray(until if plan.is_many else until[0], jnp.int32)
        start = self.reached.state if before.any() else plan.begin(plan.key, self.reached.state)
        state, infos = run(plan.algorithm, plan.policy, plan.key, start, ends)
        infos = jax.device_get(infos)
        taken = np.atleast_1d(jax.device_get(state.step)) - before
        pieces = []
        for number, count in enumerate(taken.tolist()):
            rows = (slice(count), number) if plan.is_many else slice(count)
            kept = jax.tree.map(lambda leaf, at=rows: np.array(leaf[at]), infos)
            piece = History.from_infos(kept.gradient, kept.skipped)
            pieces.append((*self.reached.pieces[number], piece))
        self.reached = Snapshot(state, tuple(pieces), self.seconds)

    def _call_back(self, numbers: list[int]) -> None:
        callback = self.plan.options.callback
        if callback is None:
            return
        for number in numbers:
            told = FitProgress(
                fit=number,
                step=int(self.step[number]),
                steps=self.plan.options.steps,
                params=self._member(self.reached.state.params, number),
                recent=self.reached.pieces[number][-1],
                seconds=self.seconds,
            )
            if first_says(lambda told=told: _is_true(callback(told))) and number not in self.ended:
                self.ended[number] = Status.STOPPED

    def _member(self, tree: PyTree, number: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[number], tree) if self.plan.is_many else tree

    def _status(self, number: int) -> Status:
        if self.diverged[number]:
            return Status.DIVERGED
        if self.step[number] >= self.plan.options.steps:
            return Status.COMPLETED
        return self.ended.get(number, Status.INTERRUPTED)


def _is_true(answer: Any) -> bool:
    return isinstance(answer, bool | np.bool_) and bool(answer)


def _retuned(steps: int) -> list[int]:
    """Steps after which variates are chosen again; fixed ones, so that they do not depend on the clock."""
    found = []
    while (step := FIRST_RETUNED * 4 ** len(found)) < steps:
        found.append(step)
    return found


@eqx.filter_jit
def _gain(gradient: Gradient, params: PyTree) -> Float[Array, ""]:
    """Nats that a step could gain, for a family whose moments are not in nats: one more exact gradient."""
    loss_grad, _, _ = gradient.update(jax.random.key(0), params, gradient.init(params))
    return 0.5 * natural_sq_norm(gradient.problem, params, loss_grad)
