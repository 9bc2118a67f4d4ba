# SPDX-License-Identifier: Apache-2.0
"""Short trial runs at fixed parameters: what the variates are worth, and what they cost."""

import dataclasses
import time
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from quell.combine.select import Costs
from quell.core.compilation import quick_jit
from quell.fit.natural_length import natural_sq_norm
from quell.gradient import Gradient, GradientState

MORE = 4
"""How many times the samples are tried, to see what they cost."""

STEPS = 24
"""Of a trial run; fewer where a step is slow."""

SECONDS = 0.03
"""That a trial run may take, at least two steps."""


Averages = tuple[GradientState, PyTree, Float[Array, ""]]
"""The state after a trial, the mean of its gradients, and the mean of their squared norms."""


class Seen(NamedTuple):
    """What a trial run of all variates has shown.

    Args:
        state: of the gradient: moments and refreshed approximations, to go on with.
        joint: averaged moments of base gradient and variates.
        mean_sq: squared norm of the mean gradient, in the units of the moments.
    """

    state: GradientState
    joint: Float[np.ndarray, "joint joint"]
    mean_sq: float


class Scout:
    """Trial runs of one gradient; the program is compiled once.

    Args:
        gradient: with all variates that might be used.
        key: for the draws; the fit's own draws are others.
    """

    def __init__(self, gradient: Gradient, key: Key[Array, ""]) -> None:
        """Nothing is run yet."""
        self.gradient, self.key, self.num, self.num_runs = gradient, key, STEPS, 0

    def look(self, params: PyTree, state: GradientState) -> Seen:
        """Run all variates, once to refresh what they keep and to learn weights, and once to average."""
        everything, unseen = len(self.gradient.variates) + 1, self.gradient.init(params).moments
        state, _, _ = self._run(params, GradientState(unseen, state.variates), everything)
        state, mean, sq_norm = self._run(params, state, everything)
        moments = state.moments
        joint = np.asarray(moments.total / jnp.where(moments.mass > 0, moments.mass, 1.0), float)
        if self.gradient.rule.by_leaf:
            joint = joint.sum(axis=0)  # one set of weights for all leaves is an upper bound of their noise
        # The squared norm of a mean of so many units has a share of their noise.
        units = self.num * self.gradient.sampler.num_units
        mean_sq = (units * float(_sq_norm(self.gradient, params, mean)) - float(sq_norm)) / max(units - 1, 1)
        return Seen(state, joint, max(mean_sq, 0.0))

    def costs(self, params: PyTree, state: GradientState) -> Costs:
        """Seconds of a step: of the base gradient, and what each variate and more samples add."""
        self._time(params, state, 0)  # compiles
        self.num = int(np.clip(SECONDS * self.num / self._time(params, state, 0), 2, STEPS))
        base = self._time(params, state, 0)
        more = self._time(params, state, len(self.gradient.variates) + 2)
        extra = [self._extra(params, state, k, base) for k in range(len(self.gradient.variates))]
        num = self.num
        return Costs(base / num, tuple(extra), max(more - base, 0.0) / (num * (MORE - 1)))

    def _extra(self, params: PyTree, state: GradientState, number: int, base: float) -> float:
        """Seconds a step that a variate adds; a refresh is shared by the steps that it serves."""
        fresh = self.gradient.init(params)
        with_refresh = self._time(params, fresh, number + 1)
        without = self._time(params, state, number + 1)
        every = getattr(self.gradient.variates[number].approximation, "every", 1)
        refresh = max(with_refresh - without, 0.0) / every if every > self.num else 0.0
        return max(without - base, 0.0) / self.num + refresh

    def _time(self, params: PyTree, state: GradientState, branch: int) -> float:
        best = np.inf
        for _ in range(2):
            began = time.perf_counter()
            jax.block_until_ready(self._run(params, state, branch))
            best = min(best, time.perf_counter() - began)
        return best

    def _run(self, params: PyTree, state: GradientState, branch: int) -> Averages:
        self.num_runs += 1  # so that no run repeats the draws of another
        key = jax.random.fold_in(self.key, self.num_runs)
        return run_trial(self.gradient, params, state, key, jnp.asarray(branch), jnp.asarray(self.num))


@quick_jit
def run_trial(
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    key: Key[Array, ""],
    branch: Int[Array, ""],
    num: Int[Array, ""],
) -> Averages:
    """Take gradients without moving, and average them and their squared norms.

    One program for all trials: branch 0 is the base gradient alone, 1 to L one variate each, L + 1 all of them, and
    L + 2 the base gradient with more samples.
    """
    total = len(gradient.variates)
    none = (False,) * total
    masks = [none, *(tuple(k == one for k in range(total)) for one in range(total)), (True,) * total]
    trials = [dataclasses.replace(gradient, active=mask) for mask in masks]
    sampler = gradient.sampler
    more = dataclasses.replace(sampler, num_replicates=MORE * sampler.num_replicates)
    trials.append(dataclasses.replace(gradient, active=none, sampler=more))

    def run(trial: Gradient) -> Averages:
        def body(count: Int[Array, ""], carry: Averages) -> Averages:
            before, mean, sq_norm = carry
            grad, after, info = trial.update(jax.random.fold_in(key, count), params, before)
            after = jax.tree.map(lambda new, old: new.astype(old.dtype), after, before)
            mean = jax.tree.map(lambda m, g: m + (g - m) / (count + 1), mean, grad)
            return after, mean, sq_norm + (info.combined_sq_norm - sq_norm) / (count + 1)

        nothing = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.fori_loop(0, num, body, (state, nothing, jnp.zeros((), jax.tree.leaves(params)[0].dtype)))

    return jax.lax.switch(branch, [lambda trial=trial: run(trial) for trial in trials])


@eqx.filter_jit
def _sq_norm(gradient: Gradient, params: PyTree, loss_grad: PyTree) -> Float[Array, ""]:
    """Squared norm of a gradient of the loss, in the units of the moments."""
    if gradient.rule.metric == "euclidean":
        return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in jax.tree.leaves(loss_grad)]))
    return natural_sq_norm(gradient.problem, params, loss_grad)
