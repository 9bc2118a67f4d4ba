# SPDX-License-Identifier: Apache-2.0
"""The geometry of a mean-field Gaussian."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families.geometry import AbstractGeometry, least_precision
from quell.families.location_scale import LocationScale, diagonal_from


class DiagonalDirection(NamedTuple):
    r"""A gradient in units of the Gaussian: \(\sigma g_\mu\) and \(\partial / \partial \log\sigma\)."""

    loc: Float[Array, "latent"]
    log_scale: Float[Array, "latent"]


class MeanFieldGeometry(AbstractGeometry):
    r"""Fisher metric \(1/\sigma^2\) for the mean and 2 for \(\log\sigma\).

    A step is one in the precision: \(\sigma^{-2}(1 - \rho\, \partial / \partial \log\sigma)\), and the mean moves by
    \(\rho\) times its gradient times the **new** variance. Where the factor would be too small or negative, it is
    \(1 - s + s^2/2\) with the same \(s\), which is positive.

    Cost: a few operations per coordinate.

    References: Khan & Rue (2023), "The Bayesian learning rule"; Lin et al. (2020), "Handling the positive-definite
    constraint in the Bayesian learning rule", for the factor.
    """

    log_scale: bool

    def direction(self, params: LocationScale, grad: LocationScale) -> DiagonalDirection:
        scale, slope = diagonal_from(params.scale, log_scale=self.log_scale)
        return DiagonalDirection(scale * grad.loc, grad.scale * scale / slope)

    def sq_norm(self, params: LocationScale, direction: DiagonalDirection) -> Float[Array, ""]:
        return jnp.sum(direction.loc**2) + 0.5 * jnp.sum(direction.log_scale**2)

    def origin(self, params: LocationScale) -> LocationScale:
        return LocationScale(jnp.zeros_like(params.loc), jnp.zeros_like(params.scale))

    def chart(self, params: LocationScale, at: LocationScale) -> LocationScale:
        scale = diagonal_from(params.scale, log_scale=self.log_scale).value
        change = at.scale / math.sqrt(2.0)
        moved = params.scale + change if self.log_scale else params.scale * jnp.exp(change)
        return LocationScale(params.loc + scale * at.loc, moved)

    def move(
        self, params: LocationScale, direction: DiagonalDirection, rate: Float[Array, ""], scale_rate: float = 1.0
    ) -> LocationScale:
        scale = diagonal_from(params.scale, log_scale=self.log_scale).value
        of_scale = scale_rate * rate
        step = of_scale * direction.log_scale
        precision = jnp.where(1.0 - step < least_precision(of_scale), 1.0 - step + 0.5 * step**2, 1.0 - step)
        loc = params.loc + rate * scale * direction.loc / precision
        if self.log_scale:
            return LocationScale(loc, params.scale - 0.5 * jnp.log(precision))
        return LocationScale(loc, params.scale / jnp.sqrt(precision))
