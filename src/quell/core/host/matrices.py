# SPDX-License-Identifier: Apache-2.0
"""Rules for primitives of linear algebra."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quell.core.host.dtypes import result_dtype


def dot(equation: Any) -> Callable[..., Any]:
    """A product of two arrays, as one of matrices."""
    (left_sum, right_sum), (left_batch, right_batch) = equation.params["dimension_numbers"]
    dtype = result_dtype(equation)
    left, right = (var.aval for var in equation.invars)

    def free(aval: Any, summed: Any, batch: Any) -> list[int]:
        return [d for d in range(aval.ndim) if d not in summed and d not in batch]

    left_free, right_free = free(left, left_sum, left_batch), free(right, right_sum, right_batch)
    length = math.prod(left.shape[d] for d in left_sum)
    batch = [left.shape[d] for d in left_batch]
    rows, columns = (math.prod(a.shape[d] for d in f) for a, f in ((left, left_free), (right, right_free)))
    orders = [*left_batch, *left_free, *left_sum], [*right_batch, *right_sum, *right_free]
    shapes = [*batch, rows, length], [*batch, length, columns]
    out = equation.outvars[0].aval.shape

    def run(x: Any, y: Any) -> Any:
        one, two = (np.transpose(a, o).reshape(s) for a, o, s in zip((x, y), orders, shapes, strict=True))
        return np.matmul(one, two, dtype=dtype).reshape(out)

    return run


def cholesky(equation: Any) -> Callable[..., Any]:
    """NaN where a matrix has no factor, as the compiler's."""
    symmetrises = equation.params.get("symmetrize_input", False)

    def one(matrix: Any) -> Any:
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return np.full_like(matrix, np.nan)

    def run(x: Any) -> Any:
        return _each(one, 0.5 * (x + np.swapaxes(x, -1, -2)) if symmetrises else x)

    return run


def triangular_solve(equation: Any) -> Callable[..., Any]:
    """By substitution, which is accurate for badly scaled matrices, and infinite for singular ones."""
    from scipy.linalg import get_blas_funcs  # a twentieth of a second, that most imports need not wait for

    params = equation.params
    solve: Any = get_blas_funcs("trsm", dtype=result_dtype(equation))
    options = {
        "side": not params["left_side"],
        "lower": params["lower"],
        "trans_a": params["transpose_a"],
        "diag": params["unit_diagonal"],
    }
    return lambda a, b: _each(lambda one, two: solve(1.0, one, two, **options), a, b)


def qr(equation: Any) -> Callable[..., Any]:
    """Without pivoting."""
    mode = "complete" if equation.params["full_matrices"] else "reduced"
    if equation.params["pivoting"]:
        raise KeyError("qr with pivoting")
    return lambda x: list(np.linalg.qr(x, mode))


def eigh(equation: Any) -> Callable[..., Any]:
    """Vectors and values."""
    lower = equation.params["lower"]

    def run(x: Any) -> list[Any]:
        if not np.isfinite(x).all():
            raise FloatingPointError("eigenvalues of a matrix that is not finite")  # the compiler's are
        values, vectors = np.linalg.eigh(x, "L" if lower else "U")
        return [vectors, values]

    return run


def _each(function: Callable[..., Any], *operands: Any) -> Any:
    """A function of matrices, for each of a batch."""
    if operands[0].ndim == 2:
        return function(*operands)
    batch = operands[0].shape[:-2]
    flat = [operand.reshape(-1, *operand.shape[-2:]) for operand in operands]
    found = np.stack([function(*matrices) for matrices in zip(*flat, strict=True)])
    return found.reshape(*batch, *found.shape[1:])
