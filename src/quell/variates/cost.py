# SPDX-License-Identifier: Apache-2.0
"""What a recipe costs in operations and memory, found by tracing it: nothing is computed or allocated."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from quell.core.program import equations, inner_programs
from quell.data.access import datum_size
from quell.evaluation import Evaluation, Problem, Sampler

ALWAYS_AFFORDABLE = 2**24
"""Numbers in one array: a matrix of 4096 by 4096, which is 64 megabytes in single precision."""

FEW = 32
"""An array may have as many times the family's parameters: a few dozen vectors, and no matrix of them."""

KEEP_A_DIAGONAL = "a quadratic that keeps a diagonal is, as in `quell.AnchoredQuadratic()` or `quell.FittedQuadratic()`"
"""What to do instead of a quadratic that makes a matrix."""


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
    made = [var.aval for equation in equations(jaxpr) for var in equation.outvars]
    return max((aval.shape for aval in made if hasattr(aval, "shape")), key=math.prod, default=())


def refuses_memory(problem: Problem, run: Callable[[Evaluation], Any], *, remedy: str = KEEP_A_DIAGONAL) -> str | None:
    """Why a recipe is not affordable; `None` if it is. Where even a square matrix would be, nothing is traced.

    Args:
        problem: model and family.
        run: of the evaluation of a draw.
        remedy: what to do instead.
    """
    if problem.model.dim**2 <= ALWAYS_AFFORDABLE:
        return None
    shape, most = largest_array(problem, run), largest_affordable(problem)
    if math.prod(shape) <= most:
        return None
    size = " x ".join(f"{length:,}" for length in shape)
    return (
        f"it makes an array of {size} numbers ({_bytes(4 * math.prod(shape))} in single precision), and for "
        f"{problem.model.dim:,} coordinates at most {most:,} ({_bytes(4 * most)}) are affordable; {remedy}"
    )


def _bytes(number: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9)):
        if number >= size:
            return f"{number / size:,.3g} {unit}"
    return f"{number / 10**6:,.3g} MB"


def count_flops(function: Callable[..., Any], *args: Any) -> float:
    """Floating-point operations of a function: exact for products, one per number for what is elementwise.

    Decompositions count by the usual leading term (9 n³ for a symmetric eigendecomposition). Loops count once.
    """
    return float(_count(jax.make_jaxpr(function)(*args).jaxpr))


def _count(jaxpr: Any) -> float:
    return sum((_equation(equation) for equation in jaxpr.eqns), 0.0)


def _equation(equation: Any) -> float:
    nested = inner_programs(equation)
    if nested:
        return sum((_count(one) for one in nested), 0.0)
    out = [var.aval for var in equation.outvars]
    size = sum(math.prod(getattr(aval, "shape", ())) for aval in out)
    name = equation.primitive.name
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return 2.0 * size * math.prod(shape[axis] for axis in contracted)
    if name == "eigh":
        return 9.0 * size * equation.invars[0].aval.shape[-1]
    if name in {"triangular_solve", "cholesky"}:
        return float(size * equation.invars[0].aval.shape[-1])
    return 0.0 if name in _FREE else float(size)


_FREE = frozenset(
    {
        "broadcast_in_dim",
        "reshape",
        "squeeze",
        "transpose",
        "slice",
        "dynamic_slice",
        "concatenate",
        "gather",
        "copy",
        "convert_element_type",
        "stop_gradient",
        "iota",
    }
)
