# SPDX-License-Identifier: Apache-2.0
"""The common result of all methods: a Gaussian over the flat latent."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families import LocationScale


class Gaussian(NamedTuple):
    """Mean and scale: standard deviations, or a lower-triangular factor of the covariance."""

    mean: Float[Array, "latent"]
    scale: Float[Array, "latent"] | Float[Array, "latent latent"]


def isotropic(mean: Float[Array, "latent"], scale: float, *, full_rank: bool) -> Gaussian:
    """The start of a run: the same standard deviation in every direction."""
    each = jnp.full(mean.shape, scale, mean.dtype)
    return Gaussian(mean, jnp.diag(each) if full_rank else each)


def params_of(gaussian: Gaussian) -> LocationScale:
    """Parameters of quell's families, which hold the logarithm of the diagonal.

    Columns of a factor whose diagonal entry is negative change their sign first.
    """
    mean, scale = (jnp.asarray(leaf, jnp.result_type(float)) for leaf in gaussian)
    if scale.ndim == 1:
        return LocationScale(mean, jnp.log(jnp.abs(scale)))
    diagonal = jnp.diagonal(scale)
    signed = jnp.tril(scale, -1) * jnp.where(diagonal < 0, -1.0, 1.0)
    return LocationScale(mean, signed + jnp.diag(jnp.log(jnp.abs(diagonal))))


def gaussian_of(params: LocationScale) -> Gaussian:
    """The inverse of `params_of`."""
    if params.scale.ndim == 1:
        return Gaussian(params.loc, jnp.exp(params.scale))
    return Gaussian(params.loc, jnp.tril(params.scale, -1) + jnp.diag(jnp.exp(jnp.diagonal(params.scale))))
