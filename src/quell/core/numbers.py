# SPDX-License-Identifier: Apache-2.0
"""Arrays as users give them, read without loss: what JAX would drop, wrap or reinterpret is refused."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def as_numbers(name: str, given: Any) -> Array | np.ndarray:
    """An array of numbers or booleans in native byte order, from anything that NumPy reads as one.

    Args:
        name: of the argument, for the error.
        given: an array of JAX, NumPy or pandas, or nested lists.

    Raises:
        ValueError: for masked entries, dates, strings, other objects, and rows of different lengths.
    """
    if isinstance(given, Array):
        return given
    array = _plain_objects(_rectangular(name, unmasked(name, given)))
    if array.dtype.kind in "mM":
        raise ValueError(
            f"`{name}` must hold numbers, got dtype {array.dtype}; try for example `(x - x.min()) / "
            "numpy.timedelta64(1, 'D')`."
        )
    if not jnp.issubdtype(array.dtype, np.number) and array.dtype.kind != "b":
        shown = array.ravel()[:4].tolist()
        raise ValueError(
            f"`{name}` must hold numbers, got {shown} of dtype {array.dtype}; try `numpy.asarray(x, float)` for text, "
            "and `x == 'yes'` or `numpy.unique(x, return_inverse=True)[1]` for categories."
        )
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def unmasked(name: str, given: Any) -> Any:
    """Refuse masked entries, which NumPy and JAX would take for numbers."""
    if num := np.ma.count_masked(given) if isinstance(given, np.ma.MaskedArray) else 0:
        raise ValueError(
            f"`{name}` must have no masked entries, got {num} of {given.size}; drop those rows, or impute them with "
            "`x.filled(value)`."
        )
    return np.ma.getdata(given) if isinstance(given, np.ma.MaskedArray) else given


def check_real(name: str, array: Array | np.ndarray) -> None:
    """Refuse complex numbers, whose imaginary part would be lost."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError(f"`{name}` must be real, got dtype {array.dtype}; pass `x.real` and `x.imag` separately.")


def check_width(name: str, array: Array | np.ndarray) -> None:
    """Refuse 64-bit integers that would wrap in JAX's 32-bit mode."""
    if array.dtype.kind not in "iu" or not array.size:
        return
    kept = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if kept.itemsize == array.dtype.itemsize:
        return
    bounds = np.iinfo(kept)
    for extreme in (int(array.min()), int(array.max())):
        if not bounds.min <= extreme <= bounds.max:
            raise ValueError(
                f"`{name}` must hold integers of at most 32 bits while JAX has no 64-bit types, got {extreme}; try "
                "`x.astype('float32')`, `numpy.unique(x, return_inverse=True)[1]` for identifiers, or "
                "`jax.config.update('jax_enable_x64', True)`."
            )


def _rectangular(name: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(given)
    except ValueError:
        lengths = [np.size(row) for row in given]
        odd = next((k for k, length in enumerate(lengths) if length != lengths[0]), None)
        if odd is None:
            raise
        raise ValueError(
            f"`{name}` must have rows of equal length, got {lengths[0]} entries in row 0 and {lengths[odd]} in row "
            f"{odd}; pad the short rows, or drop them."
        ) from None


def _plain_objects(array: np.ndarray) -> np.ndarray:
    """The numbers of an array of Python objects, where all of them are, as in some columns of pandas."""
    if array.dtype.kind != "O" or not all(isinstance(entry, numbers.Real | np.bool_) for entry in array.flat):
        return array
    return np.array(array.tolist()) if array.size else array
