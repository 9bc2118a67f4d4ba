# SPDX-License-Identifier: Apache-2.0
"""Numbers of the host as arrays, without a compiler."""

from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike


def put(value: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """An array on the default device; `jnp.asarray` would compile a program for each shape.

    It is a copy: what `jax.device_put` is given it may share, and show what is written there later.

    Args:
        value: a number or an array of the host, or an array that is on a device already.
        dtype: of the result; by default that of the value, in the precision that JAX is set to.
    """
    if isinstance(value, jax.Array):
        return value if dtype is None else value.astype(dtype)
    made = np.asarray(value, dtype)
    return jax.device_put(np.array(made, jax.dtypes.canonicalize_dtype(made.dtype)))
