# SPDX-License-Identifier: Apache-2.0
"""Where a fit of many rows with a closed form begins: near the optimum of few of them."""

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
from quell.fit.natural_length import natural_sq_norm
from quell.gradient import BaseGradient, Gradient

FEWEST = 20_000_000
"""With fewer numbers than this in the data, the passes saved take less time than compiling one more program."""

SHARE = 32
"""One row of so many is taken."""

ROWS_A_COORDINATE = 20
"""But no fewer than this many for each coordinate, so that no direction is left to the prior alone."""

MOST_NUMBERS = 2**27
"""In the rows taken: they are gathered, on a mesh for each device."""

LEAST_SHARE = 4
"""Where that would be more than one row of so many, or than may be taken, all steps see all rows."""

MOST_STEPS = 32
"""Together about as long as one step on all rows."""

KEY_NUMBER = 2**32 - 2
"""Folded into the fit's key for the rows; no step has this number."""


class WarmStart(eqx.Module):
    r"""Steps on the exact gradient of the same few rows, before those on all.

    The optimum of \(n\) random rows out of \(N\), each standing for \(N/n\), is about
    \(\tfrac{d}{2}\tfrac{N}{n}\) nats from that of all, where \(d\) counts coordinates. From there two or three steps of
    Newton's method on all rows are enough. The last step is the first that could gain less than twice that; parameters
    from which the very first could not gain more stay as they are, because nearer than so the rows do not tell.

    The rows are drawn once, with replacement, and are the same at every step, so that there is no noise.

    Args:
        num_rows: \(n\).

    Bias: that of some rows taken for all, which the steps on all rows remove.
    Cost: a gather and \(n/N\) of a pass a step; memory for the rows gathered.
    """

    num_rows: int = eqx.field(static=True)

    @classmethod
    def of(cls, problem: Problem, *, num_fits: int = 1) -> "WarmStart | None":
        """With as many rows as suit a problem; `None` where nothing would be gained. Each fit gathers its own."""
        rows, data = problem.model.num_data, problem.model.data
        most = min(most_rows(data), MOST_NUMBERS // (num_fits * datum_size(data)))
        num = min(max(rows // SHARE, ROWS_A_COORDINATE * problem.model.dim), most)
        unfit = num < ROWS_A_COORDINATE * problem.model.dim or num > rows // LEAST_SHARE
        return None if unfit or rows * datum_size(data) < FEWEST else cls(num)

    def gradient(self, exact: Gradient) -> Gradient:
        """The same closed forms on the rows that a key draws."""
        sampler = Sampler(1, self.num_rows, shared=True, replace=True)
        base = BaseGradient(ClosedForm(), ClosedForm(), ClosedForm())
        return dataclasses.replace(exact, base=base, sampler=sampler)

    def near_enough(self, problem: Problem) -> float:
        """Nats within which some rows cannot tell parameters from those that are best for all rows."""
        return problem.model.dim * problem.model.num_data / self.num_rows


class _Walk(NamedTuple):
    params: PyTree
    optimizer: PyTree
    is_over: Bool[Array, ""]
    step: Int[Array, ""]


def walk(rough: WarmStart, algorithm: Algorithm, key: Key[Array, ""], params: PyTree) -> PyTree:
    """Parameters near the optimum of the rows, or the last ones that are finite.

    Args:
        rough: how many rows.
        algorithm: the exact gradient on all rows, and natural-gradient steps.
        key: of the fit.
        params: to start from.
    """
    gradient, optimizer = rough.gradient(algorithm.gradient), algorithm.optimizer
    enough = rough.near_enough(gradient.problem)
    rows_key = jax.random.fold_in(key, KEY_NUMBER)
    nothing = gradient.init(params)

    def step(now: _Walk) -> _Walk:
        loss_grad, _, _ = gradient.update(rows_key, now.params, nothing, next_key=rows_key)
        updates, state = optimizer.update(loss_grad, now.optimizer, now.params)
        moved = jax.tree.map(jnp.add, now.params, updates)
        gain = 0.5 * natural_sq_norm(gradient.problem, now.params, loss_grad)
        is_far, is_finite = gain > enough, _is_finite(moved)
        moves = is_finite & (is_far | (now.step > 0))
        kept = jax.tree.map(lambda new, old: jnp.where(moves, new, old), moved, now.params)
        return _Walk(kept, state, ~(is_far & is_finite), now.step + 1)

    start = _Walk(params, optimizer.init(params), jnp.asarray(False), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda now: ~now.is_over & (now.step < MOST_STEPS), step, start).params


walk_one = quick_jit(walk)


@quick_jit
def walk_many(rough: WarmStart, algorithm: Algorithm, keys: Key[Array, "fit"], params: PyTree) -> PyTree:
    """`walk` for several fits side by side; everything has a leading axis."""
    return jax.vmap(lambda key, one: walk(rough, algorithm, key, one))(keys, params)


def _is_finite(params: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(params)]))
