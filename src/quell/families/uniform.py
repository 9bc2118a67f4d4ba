# SPDX-License-Identifier: Apache-2.0
"""Uniform noise for families that sample through a distribution function."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key


def open_uniform(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Uniform numbers that are neither 0 nor 1."""
    tiny = jnp.finfo(dtype).eps / 2
    return jax.random.uniform(key, shape, dtype, minval=tiny, maxval=1.0 - tiny)
