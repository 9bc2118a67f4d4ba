# SPDX-License-Identifier: Apache-2.0
"""What each primitive of a JAX program is in NumPy.

A rule takes an equation and returns a function of its operands; what the parameters of the equation decide is decided
once. Operands are arrays of the dtypes that the program has, or numbers of them.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from quell.core.host import random
from quell.core.host.indexing import gather, scatter

Rule = Callable[[Any], Callable[..., Any]]


def key_free(dtype: Any) -> np.dtype:
    """The dtype of an array on the host; keys of random numbers are 64 bits."""
    return np.dtype(np.uint64) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype)


def _dtype(equation: Any) -> np.dtype:
    return key_free(equation.outvars[0].aval.dtype)


def _plain(function: Callable[..., Any]) -> Rule:
    """A function that keeps dtypes as JAX does."""
    return lambda equation: function


def _in_dtype(function: Callable[..., Any]) -> Rule:
    """A function whose result is cast."""

    def rule(equation: Any) -> Callable[..., Any]:
        dtype = _dtype(equation)
        return lambda *operands: np.asarray(function(*operands)).astype(dtype, copy=False)

    return rule


def _logistic(x: Any) -> Any:
    return np.where(x >= 0, 1.0, np.exp(np.minimum(x, 0))).astype(x.dtype) / (1 + np.exp(-np.abs(x)))


def _divide(equation: Any) -> Callable[..., Any]:
    if np.issubdtype(_dtype(equation), np.inexact):
        return np.divide
    return lambda x, y: np.where(y == 0, -1, np.trunc(x / np.where(y == 0, 1, y))).astype(x.dtype)


def _integer_pow(equation: Any) -> Callable[..., Any]:
    power = equation.params["y"]
    if power < 0:
        return lambda x: 1 / x**-power
    return np.square if power == 2 else lambda x: x**power


def _convert(equation: Any) -> Callable[..., Any]:
    dtype, source = _dtype(equation), key_free(equation.invars[0].aval.dtype)
    if dtype == source:
        return lambda x: x
    if dtype.kind == "b":
        return lambda x: np.not_equal(x, 0)
    return lambda x: np.asarray(x).astype(dtype)


def _select(equation: Any) -> Callable[..., Any]:
    if equation.invars[0].aval.ndim == 0:
        return lambda which, *cases: cases[int(which)]
    if len(equation.invars) == 3:
        return lambda which, no, yes: np.where(which, yes, no)
    return lambda which, *cases: np.choose(which, cases)


def _shift(function: Callable[..., Any], *, signed: bool) -> Rule:
    """Shifts by the width or more leave no bits."""

    def rule(equation: Any) -> Callable[..., Any]:
        dtype = _dtype(equation)
        width, bits = 8 * dtype.itemsize, np.dtype(f"{'int' if signed else 'uint'}{8 * dtype.itemsize}")

        def run(x: Any, by: Any) -> Any:
            moved = function(np.asarray(x).view(bits), np.minimum(by, width - 1).astype(bits))
            kept = moved if signed else np.where(by < width, moved, bits.type(0))
            return np.asarray(kept).astype(bits).view(dtype)

        return run

    return rule


def _broadcast(equation: Any) -> Callable[..., Any]:
    shape, dims, dtype = equation.params["shape"], equation.params["broadcast_dimensions"], _dtype(equation)
    inner = [1] * len(shape)
    for d, size in zip(dims, equation.invars[0].aval.shape, strict=True):
        inner[d] = size
    if tuple(inner) == tuple(shape):
        return lambda x, *_: np.reshape(x, shape)

    def run(x: Any, *_: Any) -> Any:
        out = np.empty(shape, dtype)
        out[...] = np.reshape(x, inner)
        return out

    return run


def _reshape(equation: Any) -> Callable[..., Any]:
    shape = equation.outvars[0].aval.shape
    return lambda x, *_: np.reshape(x, shape)


def _transpose(equation: Any) -> Callable[..., Any]:
    order = equation.params["permutation"]
    return lambda x: np.transpose(x, order)


def _concatenate(equation: Any) -> Callable[..., Any]:
    axis = equation.params["dimension"]
    return lambda *parts: np.concatenate(parts, axis)


def _stack(equation: Any) -> Callable[..., Any]:
    axis = equation.params["axis"]
    return lambda *parts: np.stack(parts, axis)


def _unstack(equation: Any) -> Callable[..., Any]:
    axis = equation.params["axis"]
    return lambda x: list(np.moveaxis(x, axis, 0))


def _split(equation: Any) -> Callable[..., Any]:
    cuts, axis = np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"]
    return lambda x: np.split(x, cuts, axis)


def _slice(equation: Any) -> Callable[..., Any]:
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    index = tuple(slice(*part) for part in zip(starts, limits, strides, strict=True))
    return lambda x: x[index]


def _pad(equation: Any) -> Callable[..., Any]:
    config, shape, dtype = equation.params["padding_config"], equation.outvars[0].aval.shape, _dtype(equation)
    where, kept = [], []
    for (low, high, between), size in zip(config, equation.invars[0].aval.shape, strict=True):
        step = between + 1
        first = -(-max(-low, 0) // step)  # elements that a negative edge cuts off
        last = size - -(-max(-high, 0) // step)
        kept.append(slice(first, max(last, first)))
        begin = low + first * step
        where.append(slice(begin, max(begin + (max(last, first) - first - 1) * step + 1, begin), step))

    def run(x: Any, filler: Any) -> Any:
        out = np.empty(shape, dtype)
        out[...] = filler
        out[tuple(where)] = x[tuple(kept)]
        return out

    return run


def _reverse(equation: Any) -> Callable[..., Any]:
    axes = equation.params["dimensions"]
    return lambda x: np.flip(x, axes)


def _iota(equation: Any) -> Callable[..., Any]:
    shape, axis, dtype = equation.params["shape"], equation.params["dimension"], _dtype(equation)
    line = np.arange(shape[axis]).astype(dtype).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    found = np.ascontiguousarray(np.broadcast_to(line, shape))
    return lambda: found


def _empty(equation: Any) -> Callable[..., Any]:
    shape, dtype = equation.outvars[0].aval.shape, _dtype(equation)
    return lambda: np.zeros(shape, dtype)


def _reduce(ufunc: np.ufunc) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        axes, dtype = tuple(equation.params["axes"]), _dtype(equation)
        return lambda x, *_: ufunc.reduce(x, axes, dtype)

    return rule


def _extremum(function: Callable[..., Any]) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        (axis,), dtype = equation.params["axes"], _dtype(equation)
        return lambda x: np.asarray(function(x, axis)).astype(dtype)

    return rule


def _cumulative(ufunc: np.ufunc) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        axis, dtype, back = equation.params["axis"], _dtype(equation), equation.params["reverse"]
        if back:
            return lambda x: np.flip(ufunc.accumulate(np.flip(x, axis), axis, dtype), axis)
        return lambda x: ufunc.accumulate(x, axis, dtype)

    return rule


def _sort(equation: Any) -> Callable[..., Any]:
    axis, keys = equation.params["dimension"], equation.params["num_keys"]

    def run(*operands: Any) -> list[Any]:
        order = np.lexsort(operands[:keys][::-1], axis=axis)
        return [np.take_along_axis(operand, order, axis) for operand in operands]

    return run


def _dot(equation: Any) -> Callable[..., Any]:
    ((left_sum, right_sum), (left_batch, right_batch)), dtype = equation.params["dimension_numbers"], _dtype(equation)
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


def _dynamic_slice(equation: Any) -> Callable[..., Any]:
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape

    def run(x: Any, *starts: Any) -> Any:
        return x[_window(starts, sizes, shape)]

    return run


def _dynamic_update(equation: Any) -> Callable[..., Any]:
    shape, sizes = (var.aval.shape for var in equation.invars[:2])

    def run(x: Any, update: Any, *starts: Any) -> Any:
        out = np.array(x)
        out[_window(starts, sizes, shape)] = update
        return out

    return run


def _window(starts: Any, sizes: Any, shape: Any) -> tuple[slice, ...]:
    firsts = [min(max(int(at), 0), length - size) for at, size, length in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _cholesky(equation: Any) -> Callable[..., Any]:
    symmetrises = equation.params.get("symmetrize_input", False)

    def one(matrix: Any) -> Any:
        try:
            return np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return np.full_like(matrix, np.nan)

    def run(x: Any) -> Any:
        whole = 0.5 * (x + np.swapaxes(x, -1, -2)) if symmetrises else x
        flat = whole.reshape(-1, *x.shape[-2:])
        return np.stack([one(matrix) for matrix in flat]).reshape(x.shape).astype(x.dtype)

    return run


def _triangular_solve(equation: Any) -> Callable[..., Any]:
    params = equation.params
    dtype, lower, unit = _dtype(equation), params["lower"], params["unit_diagonal"]
    transposes, is_left = params["transpose_a"], params["left_side"]

    def run(a: Any, b: Any) -> Any:
        matrix = np.tril(a) if lower else np.triu(a)
        if unit:
            eye = np.eye(a.shape[-1], dtype=dtype)
            matrix = matrix * (1 - eye) + eye
        if transposes == is_left:
            matrix = np.swapaxes(matrix, -1, -2)
        right = b if is_left else np.swapaxes(b, -1, -2)
        try:
            found = np.linalg.solve(matrix, right)
        except np.linalg.LinAlgError:
            found = np.full(right.shape, np.nan)
        return np.asarray(found if is_left else np.swapaxes(found, -1, -2)).astype(dtype)

    return run


def _qr(equation: Any) -> Callable[..., Any]:
    mode = "complete" if equation.params["full_matrices"] else "reduced"
    if equation.params["pivoting"]:
        raise KeyError("qr with pivoting")
    return lambda x: list(np.linalg.qr(x, mode))


def _eigh(equation: Any) -> Callable[..., Any]:
    lower = equation.params["lower"]

    def run(x: Any) -> list[Any]:
        values, vectors = np.linalg.eigh(x, "L" if lower else "U")
        return [vectors.astype(x.dtype), values.astype(x.dtype)]

    return run


def _random_split(equation: Any) -> Callable[..., Any]:
    return functools.partial(random.split, shape=tuple(equation.params["shape"]))


def _random_bits(equation: Any) -> Callable[..., Any]:
    width = equation.params["bit_width"]
    if width not in (32, 64):
        raise KeyError(f"random bits of width {width}")
    return functools.partial(random.bits, shape=tuple(equation.params["shape"]), width=width)


def _bitcast(equation: Any) -> Callable[..., Any]:
    dtype, source = _dtype(equation), key_free(equation.invars[0].aval.dtype)
    if dtype.itemsize != source.itemsize:
        raise KeyError("bitcast to another width")
    return lambda x: np.asarray(x).view(dtype)


def _round(equation: Any) -> Callable[..., Any]:
    if equation.params["rounding_method"].name == "TO_NEAREST_EVEN":
        return np.rint
    return lambda x: np.sign(x) * np.floor(np.abs(x) + np.asarray(0.5, x.dtype))


def _platform(equation: Any) -> Callable[..., Any]:
    """Which of several branches suits this place: one for processors, or the one for all others."""
    platforms = equation.params["platforms"]
    found = next((n for n, names in enumerate(platforms) if names is None or "cpu" in names), len(platforms) - 1)
    return lambda: np.int32(found)


def _same(equation: Any) -> Callable[..., Any]:
    return (lambda x: x) if len(equation.outvars) == 1 else lambda *operands: list(operands)


_KEPT = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "pow": np.power,
    "rem": np.fmod,
    "atan2": np.arctan2,
    "nextafter": np.nextafter,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "is_finite": np.isfinite,
    "square": np.square,
    "sqrt": np.sqrt,
    "cbrt": np.cbrt,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "logistic": _logistic,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "random_seed": random.seed,
    "random_fold_in": random.fold_in,
    "random_wrap": random.from_words,
    "random_unwrap": random.words,
}

_CAST = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "lgamma": scipy.special.gammaln,
    "digamma": scipy.special.psi,
    "erf": scipy.special.erf,
    "erfc": scipy.special.erfc,
    "erf_inv": scipy.special.erfinv,
    "igamma": scipy.special.gammainc,
    "igammac": scipy.special.gammaincc,
    "regularized_incomplete_beta": scipy.special.betainc,
    "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": scipy.special.i1e,
    "polygamma": scipy.special.polygamma,
    "zeta": scipy.special.zeta,
}

RULES: dict[str, Rule] = {
    **{name: _plain(function) for name, function in _KEPT.items()},
    **{name: _in_dtype(function) for name, function in _CAST.items()},
    "div": _divide,
    "integer_pow": _integer_pow,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "select_n": _select,
    "round": _round,
    "shift_left": _shift(np.left_shift, signed=False),
    "shift_right_logical": _shift(np.right_shift, signed=False),
    "shift_right_arithmetic": _shift(np.right_shift, signed=True),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "unstack": _unstack,
    "split": _split,
    "slice": _slice,
    "pad": _pad,
    "rev": _reverse,
    "iota": _iota,
    "empty": _empty,
    "empty2": _empty,
    "reduce_sum": _reduce(np.add),
    "reduce_prod": _reduce(np.multiply),
    "reduce_max": _reduce(np.maximum),
    "reduce_min": _reduce(np.minimum),
    "reduce_and": _reduce(np.bitwise_and),
    "reduce_or": _reduce(np.bitwise_or),
    "argmax": _extremum(np.argmax),
    "argmin": _extremum(np.argmin),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "cumlogsumexp": _cumulative(np.logaddexp),
    "sort": _sort,
    "dot_general": _dot,
    "gather": gather,
    "scatter": scatter,
    "scatter-add": scatter,
    "scatter-mul": scatter,
    "scatter-min": scatter,
    "scatter-max": scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "qr": _qr,
    "eigh": _eigh,
    "random_split": _random_split,
    "random_bits": _random_bits,
    "platform_index": _platform,
    "stop_gradient": _same,
    "copy": _same,
    "optimization_barrier": _same,
}
