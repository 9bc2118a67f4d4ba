# SPDX-License-Identifier: Apache-2.0
"""The warm start of a fit of many rows with a closed form: steps on a random subset of the data."""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.compilation import quick_jit
from quell.data.access import datum_size, most_rows
from quell.estimators import ClosedForm
from quell.evaluation import Problem, Sampler
from quell.fit.algorithm import Algorithm
from quell.fit.natural_gradient import natural_sq_norm
from quell.gradient import BaseGradient, Gradient

LEAST_NUMBERS = 20_000_000
"""With fewer numbers than this in the data, the passes saved take less time than compiling one more program."""

SHARE = 32
"""One row in so many is taken."""

ROWS_PER_COORDINATE = 20
"""But no fewer than this many per coordinate, so that no direction is left to the prior alone."""

MOST_NUMBERS = 2**27
"""Most numbers in the rows taken, which are gathered, on a mesh for each device."""

LEAST_SHARE = 4
"""If more than one row in so many would be needed, or more than fit, there is no warm start."""

MOST_STEPS = 32
"""Together about as long as one step on all rows."""

KEY_NUMBER = 2**32 - 2
"""Folded into the fit's key for the rows; no step has this number."""


class WarmStart(eqx.Module):
    r"""Steps on the exact gradient of a random subset of the rows, before those on all.

    The optimum of \(n\) random rows out of \(N\), each standing for \(N/n\), is about
    \(\tfrac{d}{2}\tfrac{N}{n}\) nats from that of all, where \(d\) counts coordinates. From there two or three steps of
    Newton's method on all rows are enough. The last step is the first that could gain less than twice that; parameters
    from which the very first could not gain more stay as they are, because nearer than so the rows do not tell.

    The rows are drawn once, with replacement, and are the same at every step, so that there is no noise.

    Args:
        num_rows: \(n\).

    Bias: that of some rows taken for all, which the steps on all rows remove.
    Cost: a gather, and \(n/N\) of a pass per step; memory for the rows gathered.
    """

    num_rows: int = eqx.field(static=True)

    @classmethod
    def of(cls, problem: Problem, *, num_fits: int = 1) -> "WarmStart | None":
        """With as many rows as suit a problem; `None` where nothing would be gained. Each fit gathers its own."""
        rows, data = problem.model.num_data, problem.model.data
        most = min(most_rows(data), MOST_NUMBERS // (num_fits * datum_size(data)))
        num = min(max(rows // SHARE, ROWS_PER_COORDINATE * problem.model.dim), most)
        is_unfit = num < ROWS_PER_COORDINATE * problem.model.dim or num > rows // LEAST_SHARE
        return None if is_unfit or rows * datum_size(data) < LEAST_NUMBERS else cls(num)

    def gradient(self, exact: Gradient) -> Gradient:
        """The same closed forms on the rows that a key draws."""
        sampler = Sampler(1, self.num_rows, shared=True, replace=True)
        base = BaseGradient(ClosedForm(), ClosedForm(), ClosedForm())
        return dataclasses.replace(exact, base=base, sampler=sampler)

    def near_enough(self, problem: Problem) -> float:
        """Nats within which some rows cannot tell parameters from those that are best for all rows."""
        return problem.model.dim * problem.model.num_data / self.num_rows


class _State(NamedTuple):
    params: PyTree
    optimizer: PyTree
    is_over: Bool[Array, ""]
    step: Int[Array, ""]


def run_warm_start(start: WarmStart, algorithm: Algorithm, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
    """Parameters near the optimum of the subset, or the last finite ones.

    Args:
        start: how many rows.
        algorithm: the exact gradient on all rows, and natural-gradient steps.
        key: of the fit, or one for each of several fits.
        params: to start from; with a leading axis for several fits.
    """
    return (_run_one if key.ndim == 0 else _run_many)(start, algorithm, key, params)


def warm_start_params(start: WarmStart, algorithm: Algorithm, key: Key[Array, ""], params: PyTree) -> PyTree:
    """`run_warm_start` for one fit, not compiled."""
    gradient, optimizer = start.gradient(algorithm.gradient), algorithm.optimizer
    enough = start.near_enough(gradient.problem)
    rows_key = jax.random.fold_in(key, KEY_NUMBER)
    fresh = gradient.init(params)

    def step(now: _State) -> _State:
        loss_grad, _, _ = gradient.update(rows_key, now.params, fresh, next_key=rows_key)
        updates, state = optimizer.update(loss_grad, now.optimizer, now.params)
        moved = jax.tree.map(jnp.add, now.params, updates)
        gain = 0.5 * natural_sq_norm(gradient.problem, now.params, loss_grad)
        is_far, is_finite = gain > enough, _is_finite(moved)
        moves = is_finite & (is_far | (now.step > 0))
        kept = jax.tree.map(lambda new, old: jnp.where(moves, new, old), moved, now.params)
        return _State(kept, state, ~(is_far & is_finite), now.step + 1)

    begin = _State(params, optimizer.init(params), jnp.asarray(False), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda now: ~now.is_over & (now.step < MOST_STEPS), step, begin).params


_run_one = quick_jit(warm_start_params)


@quick_jit
def _run_many(start: WarmStart, algorithm: Algorithm, keys: Key[Array, "fit"], params: PyTree) -> PyTree:
    return jax.vmap(lambda key, one: warm_start_params(start, algorithm, key, one))(keys, params)


def _is_finite(params: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
