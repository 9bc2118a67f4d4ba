# SPDX-License-Identifier: Apache-2.0
"""Counting the operations of a function without running it."""

import math
from collections.abc import Callable
from typing import Any

import jax


def count_flops(function: Callable[..., Any], *args: Any) -> float:
    """Floating-point operations of a function: exact for products, one a number for what is elementwise.

    Decompositions count by the usual leading term (9 n³ for a symmetric eigendecomposition). Loops count once.
    """
    return float(_count(jax.make_jaxpr(function)(*args).jaxpr))


def _count(jaxpr: Any) -> float:
    return sum((_equation(equation) for equation in jaxpr.eqns), 0.0)


def _equation(equation: Any) -> float:
    inner = [p for value in equation.params.values() for p in (value if isinstance(value, tuple | list) else (value,))]
    nested = [getattr(p, "jaxpr", p) for p in inner if hasattr(p, "jaxpr") or hasattr(p, "eqns")]
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
