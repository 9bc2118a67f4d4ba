# SPDX-License-Identifier: Apache-2.0
"""The Gaussian whose covariance is a diagonal plus a matrix of low rank."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count, check_positive
from quell.families.base import AbstractFamily, Capability
from quell.families.gaussian import Gaussian
from quell.families.location_scale import constant, standard_normal
from quell.families.low_rank_algebra import LowRankAlgebra
from quell.families.low_rank_geometry import LowRankGeometry
from quell.families.low_rank_params import LowRankParams, covariance_product, whitened_factor
from quell.models.quadratic import squares_in_rows

START = 0.1
"""Size of the factor's entries at the start, in units of the scale: 1% of the variance, times the rank."""


class LowRank(AbstractFamily):
    r"""Gaussian with covariance \(\mathrm{diag}(s^2) + F F^\top\): \(z = \mu + s \odot \epsilon_1 + F \epsilon_2\).

    No matrix of size `dim` by `dim` is formed: density and entropy go through the `rank` by `rank` matrix
    \(I + F^\top \mathrm{diag}(s^{-2}) F\).

    Args:
        dim: length of the latent.
        rank: columns of \(F\).
        init_scale: the scale \(s\) that `init` starts from.

    `init` starts from a factor that is small but not zero. At zero the exact gradient of the ELBO in \(F\) vanishes
    (a saddle), and gradients of lower variance leave it more slowly. The entries are `cos(i * k)`, times a tenth of the
    scale: columns that differ from each other, so that they do not learn the same direction, and that have no symmetry
    which the model could share and be stuck with.

    Cost: a density costs `dim * rank` operations per sample and one Cholesky decomposition of size `rank` per step.

    Example:
        >>> import quell.families
        >>> quell.families.LowRank(100, rank=3).num_params
        500

    References: Ong et al. (2018), "Gaussian variational approximation with a factor covariance structure".
    """

    dim: int
    rank: int
    init_scale: float = 0.1

    def __check_init__(self) -> None:
        """Refuse a dimension or a scale that is not positive, and a rank that is not low."""
        check_count("dim", self.dim)
        check_count("rank", self.rank)
        check_positive("init_scale", self.init_scale)
        if self.rank > self.dim:
            raise ValueError(f"`rank` must be at most `dim`, {self.dim}, got {self.rank}; try `FullRank({self.dim})`.")

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.ENTROPY, Capability.MOMENTS, Capability.GAUSSIAN, Capability.GEOMETRY})

    def init(self, *, dtype: DTypeLike | None = None) -> LowRankParams:
        angles = np.outer(np.arange(1, self.dim + 1), np.arange(1, self.rank + 1))
        loc, log_scale = (constant(value, (self.dim,), dtype) for value in (0.0, math.log(self.init_scale)))
        return LowRankParams(loc, log_scale, constant(START * self.init_scale * np.cos(angles), None, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        return standard_normal(key, num, self.dim + self.rank, dtype)

    def sample(self, params: LowRankParams, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        own, shared = noise[: self.dim], noise[self.dim :]
        return params.loc + jnp.exp(params.log_scale) * own + params.factor @ shared

    def log_prob(self, params: LowRankParams, z: Float[Array, "latent"]) -> Float[Array, ""]:
        factor, root = whitened_factor(params)
        white = (z - params.loc) * jnp.exp(-params.log_scale)
        shared = jax.scipy.linalg.cho_solve((root, True), factor.T @ white)
        own = white - factor @ shared  # sums of squares only: nothing cancels, as it would in Woodbury's difference
        constant = 0.5 * self.dim * math.log(2 * math.pi)
        return -constant - _log_det(params, root) - 0.5 * (own @ own + shared @ shared)

    def entropy(self, params: LowRankParams) -> Float[Array, ""]:
        _, root = whitened_factor(params)
        return 0.5 * self.dim * (1.0 + math.log(2 * math.pi)) + _log_det(params, root)

    def mean(self, params: LowRankParams) -> Float[Array, "latent"]:
        return params.loc

    def variance(self, params: LowRankParams) -> Float[Array, "latent"]:
        return jnp.exp(2.0 * params.log_scale) + jnp.sum(params.factor**2, axis=-1)

    def covariance_product(self, params: LowRankParams, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        return covariance_product(params, rows)

    def predictor_variance(self, params: LowRankParams, rows: Float[Array, "row latent"]) -> Float[Array, "row"]:
        own = squares_in_rows(rows, jnp.exp(2.0 * params.log_scale))
        return own + jnp.sum((rows @ params.factor) ** 2, axis=-1)

    def gaussian(self, params: LowRankParams) -> Gaussian:
        return Gaussian(params.loc, jnp.exp(2.0 * params.log_scale), params.factor)

    @property
    def geometry(self) -> LowRankGeometry:
        return LowRankGeometry()

    def algebra(self, params: LowRankParams, noise: Float[Array, "sample noise"]) -> LowRankAlgebra:
        return LowRankAlgebra(self, params, noise)


def _log_det(params: LowRankParams, root: Float[Array, "rank rank"]) -> Float[Array, ""]:
    """Half the log determinant of the covariance."""
    return jnp.sum(params.log_scale) + jnp.sum(jnp.log(jnp.diagonal(root)))
