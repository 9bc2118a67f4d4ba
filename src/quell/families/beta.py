# SPDX-License-Identifier: Apache-2.0
"""Independent beta distributions, for latents between zero and one."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln, polygamma
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count, check_positive
from quell.families.base import AbstractFamily, Capability
from quell.families.quantile import log_gamma_quantile, open_uniform


class BetaParams(NamedTuple):
    """Parameters of independent beta distributions: the logarithms of the two shapes."""

    log_alpha: Float[Array, "*batch latent"]
    log_beta: Float[Array, "*batch latent"]


class Beta(AbstractFamily):
    r"""Independent beta distributions, \(z = g_1 / (g_1 + g_2)\) with gamma variables of shapes \(\alpha, \beta\).

    Both gammas are made from uniform noise by the quantile function and differentiated implicitly. The generalized
    reparameterization standardises \(\mathrm{logit}\, z\) by its mean \(\psi(\alpha) - \psi(\beta)\) and its
    variance \(\psi'(\alpha) + \psi'(\beta)\).

    Latents are rounded away from 0 and 1. In single precision that moves a noticeable mass where \(\beta\) is below
    about 0.3, because a number between 0 and 1 comes no nearer to 1 than 6e-8.

    Args:
        dim: length of the latent.
        init_alpha: the first shape that `init` starts from; a large one is a narrow start.
        init_beta: the second shape; the mean is alpha over their sum, one half by default.

    Example:
        >>> import quell.families
        >>> family = quell.families.Beta(2)
        >>> family.mean(family.init())
        Array([0.5, 0.5], dtype=...)

    References: Figurnov, Mohamed & Mnih (2018), section 3; Ruiz, Titsias & Blei (2016), section 3.
    """

    dim: int
    init_alpha: float = 5.0
    init_beta: float = 5.0

    def __check_init__(self) -> None:
        """Refuse a dimension or a shape that is not positive."""
        check_count("dim", self.dim)
        check_positive("init_alpha", self.init_alpha)
        check_positive("init_beta", self.init_beta)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.ENTROPY, Capability.MOMENTS, Capability.GENERALIZED})

    def init(self, *, dtype: DTypeLike | None = None) -> BetaParams:
        alpha, beta = math.log(self.init_alpha), math.log(self.init_beta)
        return BetaParams(jnp.full(self.dim, alpha, dtype), jnp.full(self.dim, beta, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        return open_uniform(key, (num, 2 * self.dim), dtype)

    def sample(self, params: BetaParams, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        first, second = log_gamma_quantile(_shapes(params), noise.reshape(2, self.dim))
        return _inside(first - second)

    def log_prob(self, params: BetaParams, z: Float[Array, "latent"]) -> Float[Array, ""]:
        shapes = _shapes(params)
        return jnp.sum((shapes - 1.0) * jnp.stack([jnp.log(z), jnp.log1p(-z)])) - _log_normaliser(shapes)

    def entropy(self, params: BetaParams) -> Float[Array, ""]:
        shapes = _shapes(params)
        expected_logs = digamma(shapes) - digamma(jnp.sum(shapes, axis=0))
        return _log_normaliser(shapes) - jnp.sum((shapes - 1.0) * expected_logs)

    def mean(self, params: BetaParams) -> Float[Array, "latent"]:
        return jax.nn.sigmoid(params.log_alpha - params.log_beta)

    def variance(self, params: BetaParams) -> Float[Array, "latent"]:
        mean = self.mean(params)
        return mean * (1.0 - mean) / (jnp.sum(_shapes(params), axis=0) + 1.0)

    def covariance_product(self, params: BetaParams, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        return rows * self.variance(params)

    def generalized(
        self, params: BetaParams, held: BetaParams, noise: Float[Array, "noise"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        fixed_loc, fixed_scale = _logit_moments(held)
        z = self.sample(held, noise)
        base = (jnp.log(z) - jnp.log1p(-z) - fixed_loc) / fixed_scale
        loc, scale = _logit_moments(params)
        logit = loc + scale * base
        slope = jax.nn.log_sigmoid(logit) + jax.nn.log_sigmoid(-logit)
        moved = _inside(logit)
        return moved, self.log_prob(params, moved) + jnp.sum(slope + jnp.log(scale))


def _shapes(params: BetaParams) -> Float[Array, "2 latent"]:
    return jnp.exp(jnp.stack([params.log_alpha, params.log_beta]))


def _log_normaliser(shapes: Float[Array, "2 latent"]) -> Float[Array, ""]:
    return jnp.sum(gammaln(shapes)) - jnp.sum(gammaln(jnp.sum(shapes, axis=0)))


def _logit_moments(params: BetaParams) -> tuple[Float[Array, "latent"], Float[Array, "latent"]]:
    """Mean and standard deviation of the log odds."""
    shapes = _shapes(params)
    means = digamma(shapes)
    return means[0] - means[1], jnp.sqrt(jnp.sum(polygamma(1, shapes), axis=0))


def _inside(logit: Float[Array, "latent"]) -> Float[Array, "latent"]:
    """The sigmoid, kept from becoming 0 or 1."""
    kind = jnp.finfo(logit.dtype)
    return jnp.clip(jax.nn.sigmoid(logit), kind.tiny, 1.0 - kind.epsneg)
