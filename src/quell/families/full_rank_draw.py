# SPDX-License-Identifier: Apache-2.0
"""One draw from a full-rank Gaussian: what gradients and their inner products share."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families.factored import Exact, FactoredGradient, Outer
from quell.families.symmetric_root import SymmetricRoot
from quell.families.transport import MIRRORED


class FullRankDraw:
    """Noise, and the parameters it is carried by.

    Args:
        loc: the mean.
        tril: the scale, lower triangular.
        slope: derivative of the scale's diagonal with respect to its parameters.
        noise: one row per replicate.
    """

    def __init__(
        self,
        loc: Float[Array, "latent"],
        tril: Float[Array, "latent latent"],
        slope: Float[Array, "latent"],
        noise: Float[Array, "sample latent"],
    ) -> None:
        """Keep what the draw is made of."""
        self.loc, self.tril, self.slope, self.noise = loc, tril, slope, noise

    @functools.cached_property
    def root(self) -> SymmetricRoot:
        """The symmetric square root of the covariance, decomposed on first use."""
        return SymmetricRoot.from_tril(self.tril)

    @functools.cached_property
    def mask(self) -> Float[Array, "latent latent"]:
        """From a full matrix to the parameters: ones below the diagonal, slopes on it, zeros above."""
        ones = jnp.ones_like(self.tril)
        return jnp.tril(ones, -1) + jnp.diag(self.slope)

    def weight(self, exact: Exact) -> Float[Array, "sample"]:
        """The factors of a shared value, one per replicate."""
        return jnp.ones_like(self.noise[:, 0]) if exact.weight is None else exact.weight

    def without_mirror(self, gradient: FactoredGradient) -> FactoredGradient:
        r"""The same gradient with its mirrored path as an outer product, \(-g\epsilon^\top\) for the scale."""
        cotangent = gradient.cotangent(MIRRORED)
        if cotangent is None:
            return gradient
        outer = Outer(cotangent, cotangent[:, None], -self.noise[:, None])
        return gradient.without(MIRRORED) + FactoredGradient(outers=(outer,))
