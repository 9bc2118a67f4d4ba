# SPDX-License-Identifier: Apache-2.0
"""The host's part of a fit: it acts between chunks only."""

import contextlib
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PyTree

from quell.core.compile_clock import COMPILE_CLOCK
from quell.core.devices import in_use
from quell.core.host import remembering
from quell.core.processes import ProcessLost, agree, are_several, first_says, hint_if_killed, process_lost
from quell.fit import loop
from quell.fit.checkpoint.file import CheckpointError
from quell.fit.checkpoint.keeper import Keeper, Snapshot
from quell.fit.common_draws import MOST_PARAMS
from quell.fit.convergence import has_no_gain
from quell.fit.gap import measure_gap
from quell.fit.newton import Newton, Outcome
from quell.fit.plan import FitPlan
from quell.fit.progress import FitProgress, ProgressBar, warn_if_long
from quell.fit.result import FitResult
from quell.fit.seconds import Seconds
from quell.fit.status import Status

EXACT_EVERY = 5
"""Steps between two convergence checks of an exact fit; after a warm start, of many rows, each step is worth one."""

GAIN_SHARE = 0.1
"""An exact fit has converged where a step can gain less than this share of the tolerance."""

_CHUNK_SECONDS = 0.25
_FIRST_CHUNK = 16
_LONG_SECONDS = 1.0
"""A chunk that takes longer may be followed by one of a single step, so that callbacks and Ctrl-C are heard."""


def run_plan(plan: FitPlan, bar: ProgressBar) -> list[FitResult]:
    """Run the fits of a plan, resumed where a checkpoint ends; whatever happens, the last snapshot is written.

    Args:
        plan: of the fits.
        bar: that shows how far they have come.
    """
    steps, keeper = plan.options.steps, Keeper(plan.options.checkpoint)
    with in_use(plan.options.mesh), remembering():
        fits = FitLoop(keeper.first(plan))
        if steps < (done := int(fits.step.max())):
            raise CheckpointError(
                f"`steps` must be at least {done}, the steps of the checkpoint, got {steps}; or start again with "
                "another path."
            )
        bar.enter("fitting", first=done)
        try:
            keeper.begin(fits.snapshot)
            try:
                with hint_if_killed(keeper.advice, several=are_several()):
                    fits.run(keeper, bar)
            finally:
                keeper.save(fits.snapshot)
        except KeyboardInterrupt:
            if are_several():
                raise  # the others wait for this process, and cannot know
        except (jax.errors.JaxRuntimeError, ProcessLost) as error:
            if not are_several():
                raise
            raise process_lost(error, keeper.advice) from error
        return fits.results()


def restore_plan(plan: FitPlan) -> list[FitResult]:
    """The results as far as a checkpoint holds them; nothing is run or written."""
    assert plan.options.checkpoint is not None
    return FitLoop(Snapshot.load(plan.options.checkpoint.path, plan)).results()


class FitLoop:
    """Mutable host-side state of running fits.

    Args:
        snapshot: what is done. It is replaced as a whole, so that Ctrl-C finds state and history in step.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        """Check whether some of the fits have converged before."""
        self.snapshot = snapshot
        self.ended: dict[int, Status] = {}
        self.has_run = False
        self.least_gain: dict[int, float] = {}
        self.spent, self.began, self.compiled = snapshot.seconds, time.perf_counter(), COMPILE_CLOCK.seconds
        self._check_convergence()

    @property
    def step(self) -> Int[np.ndarray, "fit"]:
        """Steps done by each fit."""
        return np.atleast_1d(jax.device_get(self.snapshot.state.step))

    @property
    def running(self) -> Int[np.ndarray, "running"]:
        """Numbers of the fits that have steps to take."""
        ended = np.isin(np.arange(self.step.size), list(self.ended))
        return np.flatnonzero((self.step < self.snapshot.plan.options.steps) & ~self.diverged & ~ended)

    @property
    def diverged(self) -> Bool[np.ndarray, "fit"]:
        """Which fits have skipped too many consecutive steps."""
        in_a_row = np.atleast_1d(jax.device_get(self.snapshot.state.skipped_in_a_row))
        return in_a_row > self.snapshot.plan.options.max_skipped

    @property
    def seconds(self) -> float:
        """Spent on the fits, before an interruption too."""
        return self.spent + time.perf_counter() - self.began

    def run(self, keeper: Keeper, bar: ProgressBar) -> None:
        """Run chunks until no fit has steps to take."""
        plan, is_told = self.snapshot.plan, False
        problem = plan.algorithm.gradient.problem
        are_long = isinstance(plan.algorithm, Newton) or problem.family.num_params > MOST_PARAMS
        length = 1 if are_long else _FIRST_CHUNK
        while (running := self.running).size:
            length, start, before = agree(length), time.perf_counter(), self.step
            ends = before.copy()
            ends[running] = self._ends_of_chunk(before[running], length)
            step, end, is_first = int(before[running].max()), int(ends[running].max()), not self.has_run
            self._run_chunk(ends)
            seconds = max(time.perf_counter() - start, 1e-6)
            if not (is_first or is_told or plan.knows_gap):  # the first chunk had to be compiled
                left, is_told = plan.options.steps - end, True
                warn_if_long(problem, self.snapshot.state, left, seconds / (end - step))
            least = 1 if are_long or seconds > _LONG_SECONDS else 2 * _FIRST_CHUNK
            length = min(max(int((end - step) * _CHUNK_SECONDS / seconds), least), loop.BUFFER)
            self._check_convergence()
            keeper.after_chunk(self.snapshot, step=end)
            recent = np.concatenate([self.snapshot.pieces[number][-1].elbo for number in running])
            if np.isfinite(recent).any():
                bar.report(end, float(recent[np.isfinite(recent)].mean()))
            for number in running.tolist():
                self._call_back(number)

    def results(self) -> list[FitResult]:
        """A result for each fit, as far as it has come."""
        plan, state, _, _ = self.snapshot
        compiling = COMPILE_CLOCK.seconds - self.compiled
        seconds = Seconds(plan.seconds, compiling, max(self.seconds - compiling, 0.0))
        outcomes = [self._outcome(number) for number in range(self.step.size)]
        return [
            FitResult(
                params=outcome.params,
                gradient=plan.algorithm.gradient,
                state=self._member(state.algorithm.gradient, number),
                history=history,
                status=self._status(number),
                seconds=seconds,
                choice=plan.choice,
                measured_gap=outcome.gap,
                num_gradients=outcome.num_gradients,
                starts_differ=outcome.starts_differ,
                lost_draws=outcome.lost_draws,
                has_khat=plan.options.khat,
            )
            for number, (outcome, history) in enumerate(zip(outcomes, self.snapshot.histories, strict=True))
        ]

    def _check_convergence(self) -> None:
        """End fits that have converged; the history up to a fixed grid of steps decides, not the clock."""
        plan = self.snapshot.plan
        stopping = plan.options.early_stopping
        newton = self.snapshot.state.algorithm.optimizer if isinstance(plan.algorithm, Newton) else None
        for number in self.running.tolist():
            pieces, is_over = self.snapshot.pieces[number], False
            if newton is not None:
                is_over = bool(self._member(newton.has_converged, number))
                if self._member(newton.has_given_up, number):
                    self.ended[number] = Status.NOT_CONVERGED
            if plan.is_exact and self._is_on_grid(number):
                params = self._member(self.snapshot.state.params, number)
                least = self.least_gain.get(number, GAIN_SHARE * plan.options.tolerance)
                is_over = has_no_gain(plan.algorithm.gradient, params, pieces[-1], least)
                # The natural metric of a family that holds no correlations does not see all that is left to gain.
                if is_over and (gap := measure_gap(plan.algorithm.gradient, params)) is not None:
                    is_over = gap.value + gap.standard_error < plan.options.tolerance
                    self.least_gain[number] = 0.1 * least
            if stopping is not None and newton is None and not is_over:
                elbo = np.concatenate([piece.elbo for piece in pieces])
                is_over = elbo.size % stopping.check_every == 0 and stopping.is_over(elbo)
            if is_over:
                self.ended[number] = Status.CONVERGED

    @property
    def _exact_every(self) -> int:
        return EXACT_EVERY if self.snapshot.plan.warm_start is None else 1

    def _is_on_grid(self, number: int) -> bool:
        """Whether a fit is where it is checked, however long its chunks are."""
        step = int(self.step[number])
        return step % self._exact_every == 0 or step == self.snapshot.plan.options.steps

    def _ends_of_chunk(self, step: Int[np.ndarray, "fit"], length: int) -> Int[np.ndarray, "fit"]:
        """Where the next chunk ends: soon, and not beyond the next step at which the host has something to do."""
        plan, options = self.snapshot.plan, self.snapshot.plan.options
        grids = [
            options.early_stopping.check_every if options.early_stopping else None,
            options.checkpoint.every_steps if options.checkpoint else None,
            self._exact_every if plan.is_exact else None,
        ]
        ends = [(step // every + 1) * every for every in grids if every is not None]
        return np.minimum.reduce([step + length, np.full_like(step, options.steps), *ends])

    def _run_chunk(self, until: Int[np.ndarray, "fit"]) -> None:
        """Take steps, and add their diagnostics to the history."""
        plan, state, pieces, _ = self.snapshot
        before, ends = self.step, jnp.asarray(until.reshape(plan.key.shape), jnp.int32)
        if not before.any():
            state = eqx.tree_at(lambda s: s.algorithm.params, state, plan.first_params(plan.key, state.params))
        run = loop.run_rounds if isinstance(plan.algorithm, Newton) else loop.run_chunk
        with contextlib.nullcontext() if self.has_run else COMPILE_CLOCK.compiling():
            state, infos = run(plan.algorithm, plan.policy, plan.key, state, ends, plan.fit_mesh)
        infos, self.has_run = jax.device_get(infos), True
        after = []
        for number, count in enumerate((np.atleast_1d(jax.device_get(state.step)) - before).tolist()):
            rows = (slice(count), number)[: 1 + plan.key.ndim]
            after.append((*pieces[number], jax.tree.map(lambda leaf, at=rows: np.array(leaf[at]), infos)))
        self.snapshot = Snapshot(plan, state, tuple(after), self.seconds)

    def _call_back(self, number: int) -> None:
        """Call the callback for a fit that has taken steps, and end it where that returns True."""
        options, recent = self.snapshot.plan.options, self.snapshot.pieces[number][-1]
        callback = options.callback
        if callback is None or not recent.num_steps:
            return
        progress = FitProgress(
            fit=number,
            step=int(self.step[number]),
            steps=options.steps,
            params=self._member(self.snapshot.state.params, number),
            recent=recent,
            seconds=self.seconds,
        )
        if first_says(lambda: _is_true(callback(progress))):
            self.ended.setdefault(number, Status.STOPPED)

    def _outcome(self, number: int) -> Outcome:
        """What a fit knows of itself; an optimiser knows where it is."""
        plan, state, _, _ = self.snapshot
        if isinstance(plan.algorithm, Newton):
            return plan.algorithm.outcome(self._member(state.algorithm, number))
        params = state.params if state.average is None else state.average.mean
        taken = int(self.step[number]) * plan.algorithm.gradient.sampler.num_replicates
        return Outcome(self._member(params, number), taken)

    def _member(self, tree: PyTree, number: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[number], tree) if self.snapshot.plan.key.ndim else tree

    def _status(self, number: int) -> Status:
        plan = self.snapshot.plan
        if self.diverged[number]:
            return Status.DIVERGED
        if number in self.ended:
            return self.ended[number]
        if self.step[number] < plan.options.steps:
            return Status.INTERRUPTED
        return Status.NOT_CONVERGED if plan.knows_gap else Status.COMPLETED


def _is_true(answer: Any) -> bool:
    return isinstance(answer, bool | np.bool_) and bool(answer)
