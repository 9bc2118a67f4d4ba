# SPDX-License-Identifier: Apache-2.0
"""Gathers and scatters, as index arrays of NumPy."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode


def gather(equation: Any) -> Callable[..., np.ndarray]:
    """Slices of an array that begin at given indices."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    mode, fill = GatherScatterMode.from_any(equation.params["mode"]), equation.params["fill_value"]
    operand, out = equation.invars[0].aval, equation.outvars[0].aval
    window = [
        d for d in range(operand.ndim) if d not in (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    ]
    batch = [d for d in range(out.ndim) if d not in numbers.offset_dims]
    order = np.argsort([*batch, *numbers.offset_dims])
    is_sorted = bool(np.all(order == np.arange(out.ndim)))
    batching = tuple(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    drops = mode == GatherScatterMode.FILL_OR_DROP
    filler = None if not drops else _filler(fill, out.dtype)

    def run(values: Any, indices: Any) -> Any:
        flat, is_inside = _flat(values.shape, indices, numbers.start_index_map, batching, window, sizes)
        found = values.ravel().take(flat)
        if drops and is_inside is not None:
            found = np.where(is_inside.reshape(is_inside.shape + (1,) * len(window)), found, filler)
        return found if is_sorted else np.transpose(found, order)

    return run


def scatter(equation: Any) -> Callable[..., np.ndarray]:
    """An array with other values, or with something added, at given indices."""
    numbers = equation.params["dimension_numbers"]
    mode = GatherScatterMode.from_any(equation.params["mode"])
    update = {"scatter-add": np.add, "scatter-mul": np.multiply, "scatter-min": np.minimum, "scatter-max": np.maximum}
    combine = update.get(equation.primitive.name)
    if combine is None and equation.params["update_jaxpr"] is not None:
        raise KeyError("an update that is computed")
    operand, updates = equation.invars[0].aval, equation.invars[2].aval
    left_out = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [d for d in range(operand.ndim) if d not in left_out]
    batch = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
    order = [*batch, *numbers.update_window_dims]
    sizes = [1] * operand.ndim
    for d, axis in zip(window, numbers.update_window_dims, strict=True):
        sizes[d] = updates.shape[axis]
    batching = tuple(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    clips = mode == GatherScatterMode.CLIP
    is_sum = combine is np.add and np.issubdtype(operand.dtype, np.floating)

    def run(values: Any, indices: Any, updates: Any) -> Any:
        starts = numbers.scatter_dims_to_operand_dims
        flat, is_inside = _flat(values.shape, indices, starts, batching, window, sizes)
        new = updates.transpose(order)
        if not clips and is_inside is not None:
            flat, new = flat[is_inside], new[is_inside]
        if is_sum:
            counts = np.bincount(flat.ravel(), new.ravel(), values.size)
            return values + counts.astype(values.dtype).reshape(values.shape)
        out = values.flatten()
        if combine is None:
            out[flat] = new
        else:
            combine.at(out, flat, new)
        return out.reshape(values.shape)

    return run


def _flat(
    shape: tuple[int, ...],
    indices: Any,
    starts: Sequence[Any],
    batching: Sequence[Any],
    window: Sequence[int],
    sizes: Sequence[Any],
) -> tuple[Any, Any]:
    """Places in the flat operand, with batch and window axes; and which slices lie inside, `None` if all do."""
    batch = indices.shape[:-1]
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    flat, outside = None, None
    for number, d in enumerate(starts):
        first, last = indices[..., number], shape[d] - sizes[d]
        if first.size and (first.min() < 0 or first.max() > last):
            beyond = (first < 0) | (first > last)
            outside = beyond if outside is None else outside | beyond
            first = np.minimum(np.maximum(first, 0), last)
        part = first.astype(np.intp)
        if strides[d] != 1:
            part *= strides[d]
        flat = part if flat is None else flat + part
    flat = np.zeros(batch, np.intp) if flat is None else flat
    for d, axis in batching:
        flat = flat + strides[d] * np.arange(shape[d]).reshape([-1 if a == axis else 1 for a in range(len(batch))])
    for d in window:
        offsets = strides[d] * np.arange(sizes[d])
        flat = flat[..., None] + offsets
    return flat, None if outside is None else ~outside


def _filler(fill: Any, dtype: Any) -> Any:
    if fill is not None:
        return np.asarray(fill, dtype)
    if np.issubdtype(dtype, np.inexact):
        return np.asarray(np.nan, dtype)
    if np.issubdtype(dtype, np.bool_):
        return np.asarray(True)
    info = np.iinfo(dtype)
    return np.asarray(info.max if info.min == 0 else info.min, dtype)
