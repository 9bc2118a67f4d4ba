# SPDX-License-Identifier: Apache-2.0
"""What each primitive of a JAX program is in NumPy.

A rule takes an equation and returns a function of its operands; what the parameters of the equation decide is decided
once. Operands are arrays of the dtypes that the program has, or numbers of them.
"""

import functools
import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from quell.core.host import matrices, random, shapes
from quell.core.host.dtypes import key_free, result_dtype
from quell.core.host.indexing import gather, scatter

Rule = Callable[[Any], Callable[..., Any]]


SHORT, MANY_ROWS = 8, 128
"""Elements of a last axis, and the least number of rows, that are combined one after the other: a reduction takes NumPy
some 20 nanoseconds for each row, which is more than a call for each element where rows are many."""


def _plain(function: Callable[..., Any]) -> Rule:
    """A function that keeps dtypes as JAX does."""
    return lambda equation: function


def _in_dtype(function: Callable[..., Any]) -> Rule:
    """A function whose result is cast."""

    def rule(equation: Any) -> Callable[..., Any]:
        dtype = result_dtype(equation)
        return lambda *operands: np.asarray(function(*operands)).astype(dtype, copy=False)

    return rule


def _special(name: str) -> Rule:
    """A function of SciPy, which takes a fifth of a second to import."""
    return lambda equation: _in_dtype(getattr(importlib.import_module("scipy.special"), name))(equation)


def _logistic(x: Any) -> Any:
    return np.where(x >= 0, 1.0, np.exp(np.minimum(x, 0))).astype(x.dtype) / (1 + np.exp(-np.abs(x)))


def _divide(equation: Any) -> Callable[..., Any]:
    if np.issubdtype(result_dtype(equation), np.inexact):
        return np.divide

    def towards_zero(x: Any, y: Any) -> Any:
        quotient = np.abs(x) // np.where(y == 0, 1, np.abs(y))
        return np.where(y == 0, -1, np.sign(x) * np.sign(y) * quotient).astype(x.dtype)

    return towards_zero


def _integer_pow(equation: Any) -> Callable[..., Any]:
    power = equation.params["y"]
    if power < 0:
        return lambda x: 1 / x**-power
    return np.square if power == 2 else lambda x: x**power


def _convert(equation: Any) -> Callable[..., Any]:
    dtype, source = result_dtype(equation), key_free(equation.invars[0].aval.dtype)
    if dtype == source:
        return lambda x: x
    if dtype.kind == "b":
        return lambda x: np.not_equal(x, 0)
    if dtype.kind in "iu" and source.kind == "f":
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max

        def saturated(x: Any) -> Any:
            inside = np.where((x > least) & (x < most), x, 0).astype(dtype)
            return np.where(x >= most, most, np.where(x <= least, least, inside)).astype(dtype)

        return saturated
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
        dtype = result_dtype(equation)
        width, bits = 8 * dtype.itemsize, np.dtype(f"{'int' if signed else 'uint'}{8 * dtype.itemsize}")

        def run(x: Any, by: Any) -> Any:
            moved = function(np.asarray(x).view(bits), np.minimum(by, width - 1).astype(bits))
            kept = moved if signed else np.where(by < width, moved, bits.type(0))
            return np.asarray(kept).astype(bits).view(dtype)

        return run

    return rule


def _reduce(ufunc: np.ufunc) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        axes, dtype, operand = tuple(equation.params["axes"]), result_dtype(equation), equation.invars[0].aval
        shape, is_kept = operand.shape, dtype == key_free(operand.dtype)
        is_last = is_kept and axes == (len(shape) - 1,)
        if is_last and 0 < shape[-1] <= SHORT and math.prod(shape[:-1]) >= MANY_ROWS:
            return lambda x, *_: functools.reduce(ufunc, (x[..., at] for at in range(shape[-1])))
        return lambda x, *_: ufunc.reduce(x, axes, dtype)

    return rule


def _extremum(function: Callable[..., Any]) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        (axis,), dtype = equation.params["axes"], result_dtype(equation)
        return lambda x: np.asarray(function(x, axis)).astype(dtype)

    return rule


def _cumulative(ufunc: np.ufunc) -> Rule:
    def rule(equation: Any) -> Callable[..., Any]:
        axis, dtype, back = equation.params["axis"], result_dtype(equation), equation.params["reverse"]
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


def _random_split(equation: Any) -> Callable[..., Any]:
    return functools.partial(random.split, shape=tuple(equation.params["shape"]))


def _random_bits(equation: Any) -> Callable[..., Any]:
    width = equation.params["bit_width"]
    if width not in (32, 64):
        raise KeyError(f"random bits of width {width}")
    return functools.partial(random.bits, shape=tuple(equation.params["shape"]), width=width)


def _bitcast(equation: Any) -> Callable[..., Any]:
    dtype, source = result_dtype(equation), key_free(equation.invars[0].aval.dtype)
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
    return (lambda *operands: list(operands)) if equation.primitive.multiple_results else lambda x: x


_KEPT = {
    "add": np.add,
    "add_any": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
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

_CAST = {"pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x)}

_SPECIAL = {
    "lgamma": "gammaln",
    "digamma": "psi",
    "erf": "erf",
    "erfc": "erfc",
    "erf_inv": "erfinv",
    "igamma": "gammainc",
    "igammac": "gammaincc",
    "regularized_incomplete_beta": "betainc",
    "bessel_i0e": "i0e",
    "bessel_i1e": "i1e",
    "polygamma": "polygamma",
    "zeta": "zeta",
}
"""Names in `scipy.special`."""

RULES: dict[str, Rule] = {
    **{name: _plain(function) for name, function in _KEPT.items()},
    **{name: _in_dtype(function) for name, function in _CAST.items()},
    **{name: _special(function) for name, function in _SPECIAL.items()},
    "div": _divide,
    "integer_pow": _integer_pow,
    "convert_element_type": _convert,
    "bitcast_convert_type": _bitcast,
    "select_n": _select,
    "round": _round,
    "shift_left": _shift(np.left_shift, signed=False),
    "shift_right_logical": _shift(np.right_shift, signed=False),
    "shift_right_arithmetic": _shift(np.right_shift, signed=True),
    "broadcast_in_dim": shapes.broadcast,
    "reshape": shapes.reshape,
    "squeeze": shapes.reshape,
    "transpose": shapes.transpose,
    "concatenate": shapes.concatenate,
    "stack": shapes.stack,
    "unstack": shapes.unstack,
    "split": shapes.split,
    "slice": shapes.strided,
    "pad": shapes.pad,
    "rev": shapes.reverse,
    "tile": lambda equation: lambda x: np.tile(x, equation.params["reps"]),
    "iota": shapes.iota,
    "empty": shapes.empty,
    "empty2": shapes.empty,
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
    "dot_general": matrices.dot,
    "gather": gather,
    "scatter": scatter,
    "scatter-add": scatter,
    "scatter-mul": scatter,
    "scatter-min": scatter,
    "scatter-max": scatter,
    "dynamic_slice": shapes.dynamic_slice,
    "dynamic_update_slice": shapes.dynamic_update,
    "cholesky": matrices.cholesky,
    "triangular_solve": matrices.triangular_solve,
    "qr": matrices.qr,
    "eigh": matrices.eigh,
    "random_split": _random_split,
    "random_bits": _random_bits,
    "platform_index": _platform,
    "stop_gradient": _same,
    "copy": _same,
    "device_put": _same,
    "optimization_barrier": _same,
}
