# SPDX-License-Identifier: Apache-2.0
"""What a recipe would need in memory, found by tracing it: nothing is computed and nothing is allocated."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from quell.data.access import datum_size
from quell.evaluation import Evaluation, Problem, Sampler

ALWAYS_AFFORDABLE = 2**24
"""Numbers in one array: a matrix of 4096 by 4096, which is 64 megabytes in single precision."""

FEW = 32
"""An array may have as many times the family's parameters: a few dozen vectors, and no matrix of them."""


def largest_affordable(problem: Problem) -> int:
    """Numbers that the largest array of a recipe may have for one replicate.

    Whatever is as large as the data, or as a few times the family's parameters, is affordable where these are.
    """
    data = problem.model.num_data * datum_size(problem.model.data)
    return max(ALWAYS_AFFORDABLE, FEW * problem.family.num_params, 2 * data)


def largest_array(problem: Problem, run: Callable[[Evaluation], Any]) -> tuple[int, ...]:
    """Shape of the largest array that a function of one replicate on one datum makes.

    Args:
        problem: model and family.
        run: of the evaluation of a draw; whatever it returns counts too.
    """

    def step(key: Any) -> PyTree:
        params = problem.family.init()
        dtype = jnp.result_type(*jax.tree.leaves(params))
        draw = Sampler(1, 1).draw(key, problem.family, problem.model.num_data, dtype)
        return run(Evaluation(problem, params, draw))

    jaxpr = jax.make_jaxpr(step)(jax.random.key(0)).jaxpr
    return max(shapes_of(jaxpr), key=math.prod, default=())


def refuses_memory(problem: Problem, run: Callable[[Evaluation], Any]) -> str | None:
    """Why a recipe is not affordable; `None` if it is. Where even a square matrix would be, nothing is traced."""
    if problem.model.dim**2 <= ALWAYS_AFFORDABLE:
        return None
    shape, most = largest_array(problem, run), largest_affordable(problem)
    if math.prod(shape) <= most:
        return None
    size = " x ".join(f"{length:,}" for length in shape)
    return (
        f"it makes an array of {size} numbers ({_bytes(4 * math.prod(shape))} in single precision), and for "
        f"{problem.model.dim:,} coordinates at most {most:,} ({_bytes(4 * most)}) are affordable; a quadratic that "
        "keeps a diagonal is, as in `quell.AnchoredQuadratic()` or `quell.FittedQuadratic()`"
    )


def shapes_of(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Of every array that a program makes, those of the programs within it too; its inputs do not count."""
    for equation in jaxpr.eqns:
        yield from (var.aval.shape for var in equation.outvars if hasattr(var.aval, "shape"))
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "jaxpr") or hasattr(inner, "eqns"):
                    yield from shapes_of(getattr(inner, "jaxpr", inner))


def _bytes(number: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9)):
        if number >= size:
            return f"{number / size:,.3g} {unit}"
    return f"{number / 10**6:,.3g} MB"
