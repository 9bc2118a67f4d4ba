# SPDX-License-Identifier: Apache-2.0
"""Independent gamma distributions, for positive latents."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln, polygamma
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count, check_positive
from quell.families.base import AbstractFamily, Capability
from quell.families.quantile import log_gamma_quantile, open_uniform


class GammaParams(NamedTuple):
    """Parameters of independent gamma distributions: the logarithms of shape and rate."""

    log_shape: Float[Array, "*batch latent"]
    log_rate: Float[Array, "*batch latent"]


class Gamma(AbstractFamily):
    r"""Independent gamma distributions, \(z = F_a^{-1}(u) / b\) with shape \(a\), rate \(b\) and uniform \(u\).

    The quantile function \(F_a^{-1}\) is differentiated implicitly. The generalized
    reparameterization standardises \(\log z\) by its mean \(\psi(a) - \log b\) and its variance \(\psi'(a)\).

    Args:
        dim: length of the latent.
        init_shape: the shape that `init` starts from; a large one is a narrow start.
        init_rate: the rate that `init` starts from; the mean is shape over rate, one by default.

    Example:
        >>> import quell.families
        >>> family = quell.families.Gamma(2)
        >>> family.mean(family.init())
        Array([1., 1.], dtype=...)

    References: Figurnov, Mohamed & Mnih (2018), section 3; Ruiz, Titsias & Blei (2016), section 3.
    """

    dim: int
    init_shape: float = 10.0
    init_rate: float = 10.0

    def __check_init__(self) -> None:
        """Refuse a dimension, a shape or a rate that is not positive."""
        check_count("dim", self.dim)
        check_positive("init_shape", self.init_shape)
        check_positive("init_rate", self.init_rate)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.ENTROPY, Capability.MOMENTS, Capability.GENERALIZED})

    def init(self, *, dtype: DTypeLike | None = None) -> GammaParams:
        shape, rate = math.log(self.init_shape), math.log(self.init_rate)
        return GammaParams(jnp.full(self.dim, shape, dtype), jnp.full(self.dim, rate, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        return open_uniform(key, (num, self.dim), dtype)

    def sample(self, params: GammaParams, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return _positive(log_gamma_quantile(jnp.exp(params.log_shape), noise) - params.log_rate)

    def log_prob(self, params: GammaParams, z: Float[Array, "latent"]) -> Float[Array, ""]:
        shape, log_z = jnp.exp(params.log_shape), jnp.log(z)
        in_rates = shape * (params.log_rate + log_z) - jnp.exp(params.log_rate) * z
        return jnp.sum(in_rates - log_z - gammaln(shape))

    def entropy(self, params: GammaParams) -> Float[Array, ""]:
        shape = jnp.exp(params.log_shape)
        return jnp.sum(shape - params.log_rate + gammaln(shape) + (1.0 - shape) * digamma(shape))

    def mean(self, params: GammaParams) -> Float[Array, "latent"]:
        return jnp.exp(params.log_shape - params.log_rate)

    def variance(self, params: GammaParams) -> Float[Array, "latent"]:
        return jnp.exp(params.log_shape - 2.0 * params.log_rate)

    def covariance_product(self, params: GammaParams, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        return rows * self.variance(params)

    def generalized(
        self, params: GammaParams, held: GammaParams, noise: Float[Array, "noise"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        fixed_loc, fixed_scale = _log_moments(held)
        z = self.sample(held, noise)
        base = (jnp.log(z) - fixed_loc) / fixed_scale
        loc, scale = _log_moments(params)
        log_z = loc + scale * base
        moved = _positive(log_z)
        return moved, self.log_prob(params, moved) + jnp.sum(log_z + jnp.log(scale))


def _log_moments(params: GammaParams) -> tuple[Float[Array, "latent"], Float[Array, "latent"]]:
    """Mean and standard deviation of the logarithm."""
    shape = jnp.exp(params.log_shape)
    return digamma(shape) - params.log_rate, jnp.sqrt(polygamma(1, shape))


def _positive(log_z: Float[Array, "latent"]) -> Float[Array, "latent"]:
    """The exponential, kept from becoming zero: a small shape asks for numbers below the smallest there is."""
    return jnp.maximum(jnp.exp(log_z), jnp.finfo(log_z.dtype).tiny)
