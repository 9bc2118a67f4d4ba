# SPDX-License-Identifier: Apache-2.0
"""The warm start of a fit of many rows whose gradient is exact: steps on a random subset of them."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key, PyTree

from quell.core.compilation import quick_jit
from quell.core.trees import all_finite, select
from quell.data.access import datum_size, most_rows
from quell.estimators import ClosedForm
from quell.evaluation import Problem, Sampler
from quell.evaluation.expectation import USUAL_LEVEL
from quell.fit.algorithm import Algorithm
from quell.fit.natural_gradient import natural_sq_norm
from quell.gradient import BaseGradient

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


def warm_start_rows(problem: Problem, *, num_fits: int = 1) -> int | None:
    """Rows that suit a problem; `None` where nothing would be gained. Each of several fits gathers its own."""
    rows, data, dim = problem.model.num_data, problem.model.data, problem.model.dim
    most = min(most_rows(data), MOST_NUMBERS // (num_fits * datum_size(data)))
    return None if rows * datum_size(data) < LEAST_NUMBERS else _some_of(rows, dim, most)


def warm_start_addends(problem: Problem) -> int | None:
    """Addends of exact expectations that suit a problem, of each group that has more; `None` as for rows."""
    expectation = problem.expectation
    is_quick = jax.default_backend() != "cpu"  # an accelerator sees all in less time than one more program takes
    if is_quick or expectation is None or expectation.level >= USUAL_LEVEL:  # they are few
        return None
    size = max(group.weight.size for group in expectation.groups)
    return _some_of(size, problem.model.dim, size)


def _some_of(rows: int, dim: int, most: int) -> int | None:
    least = ROWS_PER_COORDINATE * dim
    num = min(max(rows // SHARE, least), most)
    return None if num < least or num > rows // LEAST_SHARE else num


def subset_algorithm(exact: Algorithm, num_rows: int) -> Algorithm:
    """The same closed forms and steps on the rows that a key draws, with replacement."""
    sampler, closed = Sampler(1, num_rows, shared=True, replace=True), BaseGradient(*[ClosedForm()] * 3)
    return Algorithm(dataclasses.replace(exact.gradient, base=closed, sampler=sampler), exact.optimizer)


@quick_jit
def run_warm_start(exact: Algorithm, num_rows: int, key: Key[Array, "*fit"], params: PyTree) -> PyTree:
    """`warm_start`, compiled; with a leading axis of keys and parameters for several fits."""
    if key.ndim == 0:
        return warm_start(exact, num_rows, key, params)
    return jax.vmap(lambda own, start: warm_start(exact, num_rows, own, start))(key, params)


def warm_start(exact: Algorithm, num_rows: int, key: Key[Array, ""], params: PyTree) -> PyTree:
    r"""Parameters near the optimum of a random subset of the rows, or the last finite ones.

    The optimum of \(n\) random rows out of \(N\), each standing for \(N/n\), is about
    \(\tfrac{d}{2}\tfrac{N}{n}\) nats from that of all, where \(d\) counts coordinates. From there two or three steps of
    Newton's method on all rows are enough. The last step is the first that could gain less than twice that; parameters
    from which the very first could not gain more stay as they are, because nearer than so the rows do not tell.

    The rows are drawn once and are the same at every step, so that there is no noise.

    Args:
        exact: the exact gradient on all rows, and natural-gradient steps.
        num_rows: \(n\).
        key: of the fit.
        params: to start from.

    Bias: that of some rows taken for all, which the steps on all rows remove.
    Cost: a gather, and \(n/N\) of a pass per step; memory for the rows gathered.
    """
    algorithm, own = subset_algorithm(exact, num_rows), jax.random.fold_in(key, KEY_NUMBER)
    problem = algorithm.gradient.problem
    enough = problem.model.dim * problem.model.num_data / num_rows
    fresh = algorithm.gradient.init(params)

    def step(carry: tuple[PyTree, PyTree, Bool[Array, ""], Int[Array, ""]]) -> tuple:
        params, optimizer, _, number = carry
        loss_grad, _, _ = algorithm.gradient.update(own, params, fresh, next_key=own)
        updates, optimizer = algorithm.optimizer.update(loss_grad, optimizer, params)
        moved = jax.tree.map(jnp.add, params, updates)
        is_far = 0.5 * natural_sq_norm(problem, params, loss_grad) > enough
        is_finite = all_finite(moved)
        moves = is_finite & (is_far | (number > 0))
        return select(moves, moved, params), optimizer, is_far & is_finite, number + 1

    start = (params, algorithm.optimizer.init(params), jnp.asarray(True), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda carry: carry[2] & (carry[3] < MOST_STEPS), step, start)[0]
