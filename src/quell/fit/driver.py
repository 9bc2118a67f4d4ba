# SPDX-License-Identifier: Apache-2.0
"""The host's part of a fit: it acts between chunks only."""

import functools
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int, PyTree

from quell.core.devices import in_use
from quell.core.processes import ProcessLost, agree, are_several, first_says, hint_if_killed, is_first, process_lost
from quell.fit import loop
from quell.fit.checkpoint import CheckpointError, Keeper, Snapshot
from quell.fit.convergence import has_no_gain
from quell.fit.defaults import NOISE_CHECK_STEP
from quell.fit.history import History
from quell.fit.method import NOISE_WINDOW
from quell.fit.plan import FitPlan
from quell.fit.progress import FitProgress, Report, progress_bar, wants_bar
from quell.fit.result import FitResult
from quell.fit.status import Status

EXACT_EVERY = 5
"""Steps between two convergence checks of an exact fit; after a warm start, of many rows, each step is worth one."""

_CHUNK_SECONDS = 0.25
_FIRST_CHUNK = 16


def run_plan(plan: FitPlan) -> list[FitResult]:
    """Run the fits of a plan, resumed where a checkpoint ends; whatever happens, the last snapshot is written."""
    with in_use(plan.options.mesh):
        return _run_plan(plan)


def _run_plan(plan: FitPlan) -> list[FitResult]:
    show = wants_bar(plan.options.progress) and is_first()
    keeper = _keeper(plan)
    fits = FitLoop(plan, keeper.begin(plan.fresh()))
    fits.check_steps()
    try:
        bar = progress_bar(plan.options.steps, first=int(fits.step.max()), show=show)
        with bar as report, hint_if_killed(keeper.advice, several=are_several()):
            fits.run(keeper, report)
    except KeyboardInterrupt:
        if are_several():
            raise  # the others wait for this process, and cannot know
    except (jax.errors.JaxRuntimeError, ProcessLost) as error:
        if not are_several():
            raise
        raise process_lost(error, keeper.advice) from error
    finally:
        keeper.save(fits.snapshot)
    return fits.results()


def restore_plan(plan: FitPlan) -> list[FitResult]:
    """The results as far as a checkpoint holds them; nothing is run or written."""
    return FitLoop(plan, _keeper(plan).read(plan.fresh())).results()


def _keeper(plan: FitPlan) -> Keeper:
    return Keeper(plan.options.checkpoint, plan.fingerprint, None if plan.choice is None else plan.choice.spec())


class FitLoop:
    """Mutable host-side state of running fits.

    Args:
        plan: what is to be done.
        snapshot: what is done. It is replaced as a whole, so that Ctrl-C finds state and history in step.
    """

    def __init__(self, plan: FitPlan, snapshot: Snapshot) -> None:
        """Check whether some of the fits have converged before."""
        self.plan, self.snapshot = plan, snapshot
        self.ended: dict[int, Status] = {}
        self.spent, self.began = snapshot.seconds, time.perf_counter()
        self.check_convergence()

    def check_steps(self) -> None:
        """Refuse fewer steps than are done."""
        steps, done = self.plan.options.steps, int(self.step.max())
        if steps < done:
            raise CheckpointError(
                f"`steps` must be at least {done}, the steps of the checkpoint, got {steps}; or start again with "
                "another path."
            )

    @property
    def step(self) -> Int[np.ndarray, "fit"]:
        """Steps done by each fit."""
        return np.atleast_1d(jax.device_get(self.snapshot.state.step))

    @property
    def running(self) -> Bool[np.ndarray, "fit"]:
        """Which fits have steps to take."""
        ended = np.isin(np.arange(self.plan.num_fits), list(self.ended))
        return (self.step < self.plan.options.steps) & ~self.diverged & ~ended

    @property
    def diverged(self) -> Bool[np.ndarray, "fit"]:
        """Which fits have skipped too many consecutive steps."""
        in_a_row = np.atleast_1d(jax.device_get(self.snapshot.state.skipped_in_a_row))
        return in_a_row > self.plan.options.max_skipped

    @property
    def seconds(self) -> float:
        """Spent on the fits, before an interruption too."""
        return self.spent + time.perf_counter() - self.began

    def run(self, keeper: Keeper, report: Report) -> None:
        """Run chunks until no fit has steps to take."""
        length = _FIRST_CHUNK
        self._check_noise(keeper)  # a fit that was interrupted at that step may not have done so
        while self.running.any():
            length = agree(length)
            start, before, running = time.perf_counter(), self.step, self.running
            ends = np.where(running, [self._end_of_chunk(int(step), length) for step in before], before)
            step, end = int(before[running].max()), int(ends[running].max())
            self._run_chunk(ends)
            seconds = max(time.perf_counter() - start, 1e-6)
            length = min(max(int((end - step) * _CHUNK_SECONDS / seconds), 2 * _FIRST_CHUNK), loop.BUFFER)
            self.check_convergence()
            self._check_noise(keeper)
            keeper.after_chunk(self.snapshot, step=end)
            self._report(report, end, running)
            self._call_back(running)

    def check_convergence(self) -> None:
        """End fits that have converged; the history up to a fixed grid of steps decides, not the clock."""
        plan, stopping = self.plan, self.plan.options.early_stopping
        for number in np.flatnonzero(self.running).tolist():
            pieces, is_over = self.snapshot.pieces[number], False
            if plan.is_exact:
                params = self._member(self.snapshot.state.params, number)
                is_over = has_no_gain(plan.algorithm.gradient, params, pieces[-1])
            if stopping is not None and not is_over:
                elbo = np.concatenate([piece.elbo for piece in pieces])
                is_over = elbo.size % stopping.check_every == 0 and stopping.is_over(elbo)
            if is_over:
                self.ended[number] = Status.CONVERGED

    def _check_noise(self, keeper: Keeper) -> None:
        """After the first Hessian-based steps, change over to sampled gradients where these are too noisy."""
        if not self.plan.checks_noise or int(self.step.max()) != NOISE_CHECK_STEP or not self.running.any():
            return
        state = self.snapshot.state
        last = np.concatenate([piece.base_sq_norm for piece in self.snapshot.pieces[0]])[-NOISE_WINDOW:]
        changed = self.plan.after_noise_check(state.params, last.tolist())
        if changed is None or changed.choice is None:
            return
        keeper.change(changed.fingerprint, changed.choice.spec())
        gradient = changed.algorithm.gradient
        state = eqx.tree_at(lambda s: s.algorithm.gradient, state, changed.start.algorithm.gradient)
        history = self.snapshot.histories[0].with_variates(len(gradient.variates), len(gradient.weight_names))
        self.plan, self.snapshot = changed, Snapshot(state, ((history,),), self.seconds)

    def results(self) -> list[FitResult]:
        """A result for each fit, as far as it has come."""
        histories, state = self.snapshot.histories, self.snapshot.state
        best = state.best_params if not self.plan.is_many else jax.vmap(lambda one: one.best_params)(state)
        return [
            FitResult(
                params=self._member(best, number),
                gradient=self.plan.algorithm.gradient,
                state=self._member(state.algorithm.gradient, number),
                history=histories[number],
                status=self._status(number),
                seconds=self.seconds,
                choice=self.plan.choice,
            )
            for number in range(self.plan.num_fits)
        ]

    def _end_of_chunk(self, step: int, length: int) -> int:
        """Where the next chunk ends: soon, and not beyond the next step at which the host has something to do."""
        plan, options = self.plan, self.plan.options
        grids = [
            options.early_stopping.check_every if options.early_stopping else None,
            options.checkpoint.every_steps if options.checkpoint else None,
            (EXACT_EVERY if plan.warm_start is None else 1) if plan.is_exact else None,
        ]
        ends = [(step // every + 1) * every for every in grids if every is not None]
        if plan.checks_noise and step < NOISE_CHECK_STEP:
            ends.append(NOISE_CHECK_STEP)
        return min(step + length, options.steps, *ends)

    def _run_chunk(self, until: Int[np.ndarray, "fit"]) -> None:
        """Take steps, and add their diagnostics to the history."""
        plan, before = self.plan, self.step
        run = loop.run_chunks if plan.is_many else loop.run_chunk
        if plan.fit_mesh is not None:
            run = functools.partial(loop.run_spread, plan.fit_mesh)
        ends = jnp.asarray(until if plan.is_many else until[0], jnp.int32)
        start = self.snapshot.state if before.any() else plan.begin(plan.key, self.snapshot.state)
        state, infos = run(plan.algorithm, plan.policy, plan.key, start, ends)
        infos = jax.device_get(infos)
        taken = np.atleast_1d(jax.device_get(state.step)) - before
        pieces = []
        for number, count in enumerate(taken.tolist()):
            rows = (slice(count), number) if plan.is_many else slice(count)
            kept = jax.tree.map(lambda leaf, at=rows: np.array(leaf[at]), infos)
            pieces.append((*self.snapshot.pieces[number], History.from_infos(kept.gradient, kept.skipped)))
        self.snapshot = Snapshot(state, tuple(pieces), self.seconds)

    def _report(self, report: Report, end: int, running: Bool[np.ndarray, "fit"]) -> None:
        """Show the mean ELBO of the last chunk."""
        recent = [self.snapshot.pieces[number][-1].elbo for number in np.flatnonzero(running).tolist()]
        elbos = np.concatenate(recent)
        if np.isfinite(elbos).any():
            report(end, float(elbos[np.isfinite(elbos)].mean()))

    def _call_back(self, running: Bool[np.ndarray, "fit"]) -> None:
        """Call the callback for each fit that has taken steps, and end those for which it returns True."""
        callback = self.plan.options.callback
        if callback is None:
            return
        for number in np.flatnonzero(running).tolist():
            recent = self.snapshot.pieces[number][-1]
            if not recent.num_steps:
                continue
            progress = FitProgress(
                fit=number,
                step=int(self.step[number]),
                steps=self.plan.options.steps,
                params=self._member(self.snapshot.state.params, number),
                recent=recent,
                seconds=self.seconds,
            )
            if first_says(lambda now=progress: _is_true(callback(now))) and number not in self.ended:
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
