# SPDX-License-Identifier: Apache-2.0
"""The geometry of a full-rank Gaussian, in its Cholesky factor."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from quell.families.geometry import LEAST_PRECISION, AbstractGeometry, least_precision
from quell.families.location_scale import LocationScale, diagonal_from, diagonal_of, lower, scale_tril

_LARGE = 1e6
"""Above the inverse of every precision that a step may take."""


class WhitenedDirection(NamedTuple):
    r"""A gradient in units of the Gaussian: \(L^\top g_\mu\) and the lower triangle of \(L^\top G_L\)."""

    loc: Float[Array, "latent"]
    scale: Float[Array, "latent latent"]


class FullRankGeometry(AbstractGeometry):
    r"""Fisher metric of \((\mu, L)\), diagonal in the coordinates \(L^{-1}\delta\mu\) and \(L^{-1}\delta L\).

    Its entries are one, and two on the diagonal of \(L^{-1}\delta L\). The lower triangle \(A\) of \(L^\top G_L\), for
    a gradient \(G_L\), is that of a symmetric matrix \(-S\), twice the gradient in the covariance in the same units. A
    step is one in the precision: \(P = I + \rho S\), the new covariance is \(L P^{-1} L^\top\), and the mean moves by
    \(\rho\) times its gradient times the **new** covariance. For an exact gradient of a log-concave target and
    \(\rho < 1\), \(P\) is positive. Where it is not, or where a pivot is so small that only noise explains it, a step
    takes \(P = I + \rho S + \rho^2 S^2/2\). A leap takes the absolute eigenvalues of \(I + S\), minus the expected
    Hessian, instead: where the density is not concave, as in coefficients and the scale of the noise far from both, it
    moves as far as along a concave one that bends as much.

    Cost: three products of size `dim`, and a Cholesky decomposition of twice that; a decomposition into eigenvectors
    where a leap needs it.

    References: Khan & Rue (2023), "The Bayesian learning rule"; Lin et al. (2020), "Handling the positive-definite
    constraint in the Bayesian learning rule"; Tan (2024), "Analytic natural gradient updates for Cholesky factor in
    Gaussian variational approximation", for the metric; Dauphin et al. (2014), "Identifying and attacking the saddle
    point problem in high-dimensional non-convex optimization", for absolute eigenvalues.
    """

    log_scale: bool

    @property
    def momentum(self) -> float:
        return 0.0

    def direction(self, params: LocationScale, grad: LocationScale) -> WhitenedDirection:
        tril = scale_tril(params.scale, log_scale=self.log_scale)
        slope = diagonal_from(jnp.diagonal(params.scale), log_scale=self.log_scale).slope
        return WhitenedDirection(tril.T @ grad.loc, jnp.tril(tril.T @ matrix_cotangent(grad.scale, slope)))

    def sq_norm(self, params: LocationScale, direction: WhitenedDirection) -> Float[Array, ""]:
        squares = direction.scale**2
        return jnp.sum(direction.loc**2) + jnp.sum(squares) - 0.5 * jnp.trace(squares)

    def origin(self, params: LocationScale) -> LocationScale:
        return LocationScale(jnp.zeros_like(params.loc), jnp.zeros_like(params.scale))

    def chart(self, params: LocationScale, at: LocationScale) -> LocationScale:
        tril = scale_tril(params.scale, log_scale=self.log_scale)
        change = diagonal_of(at.scale) / math.sqrt(2.0)
        diagonal = diagonal_of(params.scale)  # of a product of triangular matrices, the product of the diagonals
        moved = diagonal + change if self.log_scale else diagonal * jnp.exp(change)
        return LocationScale(params.loc + tril @ at.loc, lower(tril @ lower(at.scale, jnp.exp(change)), moved))

    @property
    def knows_curvature(self) -> bool:
        return True

    def leap(self, params: LocationScale, grad: LocationScale, rate: Float[Array, ""]) -> LocationScale:
        diagonal = math.sqrt(2.0) * jnp.diagonal(grad.scale)  # the chart has other units there
        direction = WhitenedDirection(grad.loc, jnp.tril(grad.scale, -1) + jnp.diag(diagonal))
        step = _precision_step(direction, jnp.ones_like(rate))
        is_usable, shrink = _inverse_root(rate * step, least_precision(rate))
        shrink = jax.lax.cond(
            is_usable, lambda: shrink, lambda: _inverse_root(rate * _with_absolute_eigenvalues(step))[1]
        )
        return self._shrunk(params, direction, rate, shrink)

    def move(
        self, params: LocationScale, direction: WhitenedDirection, rate: Float[Array, ""], scale_rate: float = 1.0
    ) -> LocationScale:
        of_scale = scale_rate * rate
        step = _precision_step(direction, of_scale)
        is_usable, shrink = _inverse_root(step, least_precision(of_scale))
        shrink = jax.lax.cond(is_usable, lambda: shrink, lambda: _inverse_root(step + 0.5 * step @ step)[1])
        return self._shrunk(params, direction, rate, shrink)

    def _shrunk(
        self,
        params: LocationScale,
        direction: WhitenedDirection,
        rate: Float[Array, ""],
        shrink: Float[Array, "latent latent"],
    ) -> LocationScale:
        tril = scale_tril(params.scale, log_scale=self.log_scale)
        moved = jnp.tril(tril @ shrink)
        loc = params.loc + rate * (moved @ (shrink.T @ direction.loc))
        diagonal = jnp.diagonal(moved)
        diagonal = jnp.log(diagonal) if self.log_scale else diagonal
        return LocationScale(loc, jnp.tril(moved, -1) + jnp.diag(diagonal))


def matrix_cotangent(
    scale: Float[Array, "*batch latent latent"], slope: Float[Array, "latent"]
) -> Float[Array, "*batch latent latent"]:
    """From a cotangent of the scale's parameters to one of the scale matrix: the diagonal has a slope."""
    return scale * (jnp.tril(jnp.ones(scale.shape[-2:], scale.dtype), -1) + jnp.diag(1.0 / slope))


def _precision_step(direction: WhitenedDirection, rate: Float[Array, ""]) -> Float[Array, "latent latent"]:
    """What a step adds to the precision, in units of the old one."""
    strict = jnp.tril(direction.scale, -1)
    return -rate * (strict + strict.T + jnp.diag(jnp.diagonal(direction.scale)))


def _with_absolute_eigenvalues(step: Float[Array, "latent latent"]) -> Float[Array, "latent latent"]:
    """What a step must add to the precision, for that to have eigenvalues that are positive and of the same size."""
    sizes, ways = jnp.linalg.eigh(step + jnp.eye(step.shape[0], dtype=step.dtype))
    return (ways * (jnp.maximum(jnp.abs(sizes), LEAST_PRECISION) - 1.0)) @ ways.T


def _inverse_root(
    step: Float[Array, "latent latent"], least: float | Float[Array, ""] = 0.0
) -> tuple[Bool[Array, ""], Float[Array, "latent latent"]]:
    r"""A lower-triangular \(K\) with \(K K^\top = (I + S)^{-1}\) for a symmetric step \(S\), and whether it is usable.

    It is where no factor of the precision is below the least.
    """
    identity = jnp.eye(step.shape[0], dtype=step.dtype)
    # With rows and columns reversed the lower root is an upper one, whose inverse, transposed, is lower again. That
    # inverse is read from the root of a larger matrix: BLAS's triangular solve for a whole matrix may wait for threads
    # a hundred times as long.
    precision = (identity + step)[::-1, ::-1]
    larger = jnp.block([[precision, identity], [identity, _LARGE * identity]])
    root = jax.lax.linalg.cholesky(larger, symmetrize_input=False)
    pivots, inverse = jnp.diagonal(root)[: step.shape[0]], root[step.shape[0] :, : step.shape[0]]
    return jnp.all(pivots**2 > least), inverse[::-1, ::-1]  # false for NaN
