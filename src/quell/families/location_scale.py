# SPDX-License-Identifier: Apache-2.0
"""What the Gaussian families share: their parameters, the transform of the diagonal, and standard normal noise."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.put import put

LARGE_DRAW = 2**20
"""From this many numbers on, noise is made in a loop."""


class LocationScale(NamedTuple):
    """Parameters of a Gaussian: mean and scale (a vector, or a lower-triangular matrix)."""

    loc: Float[Array, "*batch latent"]
    scale: Float[Array, "*batch latent"] | Float[Array, "*batch latent latent"]


class Diagonal(NamedTuple):
    """The diagonal of the scale: its values and their slopes with respect to the parameters."""

    value: Float[Array, "latent"]
    slope: Float[Array, "latent"]


def diagonal_from(raw: Float[Array, "latent"], *, log_scale: bool) -> Diagonal:
    """Read the diagonal from its parameters, stored as they are or as logarithms."""
    if not log_scale:
        return Diagonal(raw, jnp.ones_like(raw))
    value = jnp.exp(raw)
    return Diagonal(value, value)


def scale_tril(raw: Float[Array, "latent latent"], *, log_scale: bool) -> Float[Array, "latent latent"]:
    r"""The triangular matrix \(L\) from its parameters."""
    return lower(raw, diagonal_from(diagonal_of(raw), log_scale=log_scale).value)


def diagonal_of(matrix: Float[Array, "latent latent"]) -> Float[Array, "latent"]:
    """As `jnp.diagonal`, in two operations: it is differentiated twice in every step, and each is to be compiled."""
    size = matrix.shape[0]
    return jax.lax.slice(matrix.reshape(-1), (0,), (size * size,), (size + 1,))


def lower(below: Float[Array, "latent latent"], diagonal: Float[Array, "latent"]) -> Float[Array, "latent latent"]:
    """What a matrix has below its diagonal, with another diagonal; in few operations, as `diagonal_of`."""
    size = diagonal.shape[0]
    strict = np.tril(np.ones((size, size), bool), -1)
    return jax.lax.select(strict, below, diagonal[:, None] * np.eye(size, dtype=diagonal.dtype))


def constant(value: Any, shape: tuple[int, ...] | None, dtype: DTypeLike | None) -> Array:
    """An array of one value, or of given ones, made without a compiler."""
    made = np.asarray(value, jnp.result_type(float if dtype is None else dtype))
    return put(made if shape is None else np.full(shape, made))


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
