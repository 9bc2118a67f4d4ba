# SPDX-License-Identifier: Apache-2.0
"""Numbers of the host as arrays, without a compiler."""

from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike


def put(value: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """An array on the default device; `jnp.asarray` would compile a program for each shape.

    Args:
        value: a number or an array of the host, or an array that is on a device already.
        dtype: of the result; by default that of the value, in the precision that JAX is set to.
    """
    if isinstance(value, jax.Array) and dtype is None:
        return value
    made = np.asarray(value, dtype)
    return jax.device_put(made.astype(jax.dtypes.canonicalize_dtype(made.dtype), copy=False))
