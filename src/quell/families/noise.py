# SPDX-License-Identifier: Apache-2.0
"""Base noise: standard normal and uniform numbers."""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

LARGE_DRAW = 2**20
"""From this many numbers on, noise is made in a loop."""


def standard_normal(key: Key[Array, ""], num: int, dim: int, dtype: DTypeLike) -> Float[Array, "sample latent"]:
    """Independent standard normal noise; a large draw is made replicate by replicate.

    In one piece, a compiler that fuses would keep four arrays in place of the noise, and make it anew for each use.
    """
    if num * dim < LARGE_DRAW:
        return jax.random.normal(key, (num, dim), dtype)
    return jax.lax.map(lambda one: jax.random.normal(one, (dim,), dtype), jax.random.split(key, num))


def standard_log_prob(noise: Float[Array, "sample latent"]) -> Float[Array, "sample"]:
    """Log density of standard normal noise."""
    return -0.5 * noise.shape[1] * math.log(2 * math.pi) - 0.5 * jnp.sum(noise**2, axis=1)


def open_uniform(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Uniform numbers that are neither 0 nor 1."""
    tiny = jnp.finfo(dtype).eps / 2
    return jax.random.uniform(key, shape, dtype, minval=tiny, maxval=1.0 - tiny)
