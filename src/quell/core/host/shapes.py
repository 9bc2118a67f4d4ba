# SPDX-License-Identifier: Apache-2.0
"""Rules for primitives that make, move and cut arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from quell.core.host.dtypes import result_dtype


def broadcast(equation: Any) -> Callable[..., Any]:
    """To a larger shape."""
    shape, dims, dtype = equation.params["shape"], equation.params["broadcast_dimensions"], result_dtype(equation)
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


def reshape(equation: Any) -> Callable[..., Any]:
    """In the same order."""
    shape = equation.outvars[0].aval.shape
    return lambda x, *_: np.reshape(x, shape)


def transpose(equation: Any) -> Callable[..., Any]:
    """Axes in another order."""
    order = equation.params["permutation"]
    return lambda x: np.transpose(x, order)


def concatenate(equation: Any) -> Callable[..., Any]:
    """Along an axis."""
    axis = equation.params["dimension"]
    return lambda *parts: np.concatenate(parts, axis)


def stack(equation: Any) -> Callable[..., Any]:
    """Along a new axis."""
    axis = equation.params["axis"]
    return lambda *parts: np.stack(parts, axis)


def unstack(equation: Any) -> Callable[..., Any]:
    """The parts along an axis."""
    axis = equation.params["axis"]
    return lambda x: list(np.moveaxis(x, axis, 0))


def split(equation: Any) -> Callable[..., Any]:
    """Pieces of given sizes along an axis."""
    cuts, axis = np.cumsum(equation.params["sizes"])[:-1], equation.params["axis"]
    return lambda x: np.split(x, cuts, axis)


def strided(equation: Any) -> Callable[..., Any]:
    """From constant starts to constant limits by constant strides."""
    starts, limits = equation.params["start_indices"], equation.params["limit_indices"]
    strides = equation.params["strides"] or (1,) * len(starts)
    index = tuple(slice(*part) for part in zip(starts, limits, strides, strict=True))
    return lambda x: x[index]


def pad(equation: Any) -> Callable[..., Any]:
    """With a value outside and between; a negative width cuts."""
    config, shape, dtype = equation.params["padding_config"], equation.outvars[0].aval.shape, result_dtype(equation)
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


def reverse(equation: Any) -> Callable[..., Any]:
    """Along some axes."""
    axes = equation.params["dimensions"]
    return lambda x: np.flip(x, axes)


def iota(equation: Any) -> Callable[..., Any]:
    """Numbers from zero along an axis."""
    shape, axis, dtype = equation.params["shape"], equation.params["dimension"], result_dtype(equation)
    line = np.arange(shape[axis]).astype(dtype).reshape([-1 if d == axis else 1 for d in range(len(shape))])
    found = np.ascontiguousarray(np.broadcast_to(line, shape))
    return lambda: found


def empty(equation: Any) -> Callable[..., Any]:
    """Zeros: nothing reads them."""
    shape, dtype = equation.outvars[0].aval.shape, result_dtype(equation)
    return lambda: np.zeros(shape, dtype)


def dynamic_slice(equation: Any) -> Callable[..., Any]:
    """From computed starts, moved so that the window is inside."""
    sizes, shape = equation.params["slice_sizes"], equation.invars[0].aval.shape

    def run(x: Any, *starts: Any) -> Any:
        return x[_window(starts, sizes, shape)]

    return run


def dynamic_update(equation: Any) -> Callable[..., Any]:
    """Written at computed starts, moved so that the window is inside."""
    shape, sizes = (var.aval.shape for var in equation.invars[:2])

    def run(x: Any, update: Any, *starts: Any) -> Any:
        out = np.array(x)
        out[_window(starts, sizes, shape)] = update
        return out

    return run


def _window(starts: Any, sizes: Any, shape: Any) -> tuple[slice, ...]:
    firsts = [min(max(int(at), 0), length - size) for at, size, length in zip(starts, sizes, shape, strict=True)]
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))
