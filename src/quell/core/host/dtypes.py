# SPDX-License-Identifier: Apache-2.0
"""The dtypes of a JAX program in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def key_free(dtype: Any) -> np.dtype:
    """The dtype of an array on the host; keys of random numbers are 64 bits."""
    return np.dtype(np.uint64) if jnp.issubdtype(dtype, jax.dtypes.prng_key) else np.dtype(dtype)


def result_dtype(equation: Any) -> np.dtype:
    """Of the first result of an equation."""
    return key_free(equation.outvars[0].aval.dtype)
