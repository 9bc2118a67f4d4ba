# SPDX-License-Identifier: Apache-2.0
"""Parameters of the Gaussian whose covariance is a diagonal plus a matrix of low rank."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class LowRankParams(NamedTuple):
    """Parameters of a low-rank Gaussian: mean, logarithm of the diagonal scale, and factor."""

    loc: Float[Array, "*batch latent"]
    log_scale: Float[Array, "*batch latent"]
    factor: Float[Array, "*batch latent rank"]


def covariance_product(params: LowRankParams, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
    """Rows times the covariance, without forming it."""
    return rows * jnp.exp(2.0 * params.log_scale) + (rows @ params.factor) @ params.factor.T


def whitened_factor(params: LowRankParams) -> tuple[Float[Array, "latent rank"], Float[Array, "rank rank"]]:
    r"""\(G = F / s\) and the Cholesky root of \(I + G^\top G\)."""
    factor = params.factor * jnp.exp(-params.log_scale)[:, None]
    return factor, jnp.linalg.cholesky(jnp.eye(factor.shape[1], dtype=factor.dtype) + factor.T @ factor)
