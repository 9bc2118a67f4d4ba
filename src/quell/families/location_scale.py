# SPDX-License-Identifier: Apache-2.0
"""What the Gaussian families share: their parameters and the transform of the diagonal."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


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
    diagonal = diagonal_from(jnp.diagonal(raw), log_scale=log_scale).value
    return jnp.tril(raw, -1) + jnp.diag(diagonal)
