# SPDX-License-Identifier: Apache-2.0
"""The full-rank Gaussian, parameterised by its mean and a triangular scale."""

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_positive
from quell.families.base import AbstractFamily, Capability
from quell.families.full_rank_algebra import FullRankAlgebra
from quell.families.full_rank_geometry import FullRankGeometry
from quell.families.full_rank_gram import FullRankDraw
from quell.families.gaussian import Gaussian
from quell.families.location_scale import (
    LocationScale,
    constant,
    diagonal_from,
    diagonal_of,
    scale_tril,
    standard_normal,
)
from quell.families.transport import CHOLESKY, MIRRORED, SYMMETRIC, AbstractTransport


class FullRank(AbstractFamily):
    r"""Gaussian with any covariance \(L L^\top\); the parameters are \(\mu\) and the lower triangle of \(L\).

    Transports: `CHOLESKY`, \(z = \mu + L\epsilon\); `SYMMETRIC`, \(z = \mu + (LL^\top)^{1/2}\epsilon\); and
    `MIRRORED`, \(z = \mu - L\epsilon\), which is another square root of the covariance and costs no decomposition.

    Args:
        dim: length of the latent.
        log_scale: store the logarithm of \(L\)'s diagonal (the default) or \(L\) as it is (the paper).
        init_scale: `init` starts from this multiple of the identity.

    Example:
        >>> import quell
        >>> quell.FullRank(3).num_params
        9
    """

    dim: int
    log_scale: bool = True
    init_scale: float = 0.1

    def __check_init__(self) -> None:
        """Refuse a dimension or a scale that is not positive."""
        check_count("dim", self.dim)
        check_positive("init_scale", self.init_scale)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            {
                *(Capability.ENTROPY, Capability.MOMENTS, Capability.GAUSSIAN),
                *(Capability.GEOMETRY, Capability.NATURAL_METRIC, Capability.TRIANGULAR_SCALE),
            }
        )

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        return CHOLESKY, SYMMETRIC, MIRRORED

    @property
    def num_leaf_params(self) -> tuple[int, ...]:
        return self.dim, self.dim * (self.dim + 1) // 2

    def init(self, *, dtype: DTypeLike | None = None) -> LocationScale:
        start = math.log(self.init_scale) if self.log_scale else self.init_scale
        return LocationScale(constant(0.0, (self.dim,), dtype), constant(start * np.eye(self.dim), None, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample latent"]:
        return standard_normal(key, num, self.dim, dtype)

    def scale_tril(self, params: PyTree) -> Float[Array, "latent latent"]:
        r"""The matrix \(L\)."""
        return scale_tril(params.scale, log_scale=self.log_scale)

    def sample(self, params: PyTree, noise: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return params.loc + self.scale_tril(params) @ noise

    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        tril = self.scale_tril(params)
        white = solve_triangular(tril, z - params.loc, lower=True)
        return -0.5 * self.dim * math.log(2 * math.pi) - _log_det(tril) - 0.5 * white @ white

    def entropy(self, params: PyTree) -> Float[Array, ""]:
        return 0.5 * self.dim * (1.0 + math.log(2 * math.pi)) + _log_det(self.scale_tril(params))

    def mean(self, params: PyTree) -> Float[Array, "latent"]:
        return params.loc

    def variance(self, params: PyTree) -> Float[Array, "latent"]:
        return jnp.sum(self.scale_tril(params) ** 2, axis=1)

    def covariance_product(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        tril = self.scale_tril(params)
        return (rows @ tril) @ tril.T

    def predictor_variance(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row"]:
        # One product, which the gradient of the scale shares.
        return jnp.sum((rows @ self.scale_tril(params)) ** 2, axis=-1)

    def gaussian(self, params: PyTree) -> Gaussian:
        return Gaussian(params.loc, factor=self.scale_tril(params))

    @property
    def geometry(self) -> FullRankGeometry:
        return FullRankGeometry(self.log_scale)

    def algebra(self, params: PyTree, noise: Float[Array, "sample latent"]) -> FullRankAlgebra:
        slope = diagonal_from(jnp.diagonal(params.scale), log_scale=self.log_scale).slope
        return FullRankAlgebra(FullRankDraw(params.loc, self.scale_tril(params), slope, noise))


def _log_det(tril: Float[Array, "latent latent"]) -> Float[Array, ""]:
    return jnp.sum(jnp.log(jnp.abs(diagonal_of(tril))))
