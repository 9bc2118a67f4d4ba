# SPDX-License-Identifier: Apache-2.0
"""The geometry of a Gaussian whose covariance is a diagonal plus a matrix of low rank."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families import LowRank
from quell.families.low_rank_params import LowRankParams
from quell.natural.geometry import AbstractGeometry

LARGEST_CHANGE = 1.0
"""Of the logarithm of a scale, in one step."""


class LowRankDirection(NamedTuple):
    """The mean's gradient as it is, and the natural gradient of the scales in units of the diagonal scale."""

    loc: Float[Array, "latent"]
    log_scale: Float[Array, "latent"]
    factor: Float[Array, "latent rank"]


class LowRankGeometry(AbstractGeometry):
    r"""Fisher metric of \((\mu, \log s, F)\) for a covariance \(\mathrm{diag}(s^2) + F F^\top\).

    The mean's natural gradient is a product with the covariance. For the scales, conjugate gradients solve
    \((F_w + \lambda I)\delta = g\) with products of the metric alone: the Hessian of the divergence from where the
    Gaussian is, by automatic differentiation, in units of \(s\). The metric is singular, because \(F\) may be rotated,
    and nearly so where \(F\) is small; damping keeps steps short there, where a straight line soon leaves the region in
    which the metric holds.

    Args:
        family: the Gaussian.
        num_products: of conjugate gradients.
        damping: \(\lambda\).

    Cost: `num_products` times about ten times `dim * rank**2` operations. Memory: a few copies of the parameters.
    """

    family: LowRank
    num_products: int = eqx.field(static=True, default=5)
    damping: float = eqx.field(static=True, default=1.0)

    def direction(self, params: LowRankParams, grad: LowRankParams) -> LowRankDirection:
        scale = jnp.exp(params.log_scale)
        steep = (grad.log_scale, grad.factor * scale[:, None])

        def damped(step: tuple[Array, Array]) -> tuple[Array, Array]:
            return jax.tree.map(lambda b, s: b + self.damping * s, _metric_product(params, step), step)

        solved, _ = jax.scipy.sparse.linalg.cg(damped, steep, maxiter=self.num_products)
        return LowRankDirection(grad.loc, *solved)

    def sq_norm(self, params: LowRankParams, direction: LowRankDirection) -> Float[Array, ""]:
        loc = self.family.covariance_product(params, direction.loc[None])[0] @ direction.loc
        step = (direction.log_scale, direction.factor)
        bent = _metric_product(params, step)
        return loc + sum(jnp.sum(s * b) for s, b in zip(step, bent, strict=True))

    def move(self, params: LowRankParams, direction: LowRankDirection, rate: Float[Array, ""]) -> LowRankParams:
        # Within the bound the step is a straight line: unlike a precision, these parameters may have any value.
        longest = jnp.maximum(jnp.max(jnp.abs(direction.log_scale)), jnp.max(jnp.abs(direction.factor)))
        part = jnp.minimum(rate, LARGEST_CHANGE / jnp.maximum(longest, jnp.finfo(longest.dtype).tiny))
        moved = _moved(params, part * direction.log_scale, part * direction.factor)
        step = self.family.covariance_product(moved, direction.loc[None])[0]
        return LowRankParams(params.loc + rate * step, moved.log_scale, moved.factor)


def _metric_product(params: LowRankParams, step: tuple[Array, Array]) -> tuple[Array, Array]:
    """The metric of the scales times a step, in units of the diagonal scale."""

    def divergence(moved: tuple[Array, Array]) -> Float[Array, ""]:
        return _divergence(params, _moved(params, *moved))

    return jax.jvp(jax.grad(divergence), (jax.tree.map(jnp.zeros_like, step),), (step,))[1]


def _moved(params: LowRankParams, log_scale: Array, factor: Array) -> LowRankParams:
    scale = jnp.exp(params.log_scale)[:, None]
    return LowRankParams(params.loc, params.log_scale + log_scale, params.factor + scale * factor)


def _divergence(here: LowRankParams, there: LowRankParams) -> Float[Array, ""]:
    r"""\(\tfrac12 (\mathrm{tr}\,\Sigma_1^{-1}\Sigma_0 + \log|\Sigma_1|)\), which is the divergence up to a constant."""
    spread = jnp.exp(-there.log_scale)
    white = there.factor * spread[:, None]
    root = jnp.linalg.cholesky(jnp.eye(white.shape[1], dtype=white.dtype) + white.T @ white)
    # The inverse of there's covariance is spread (I - B B') spread, with B = white root^-T.
    basis = jax.scipy.linalg.solve_triangular(root, white.T, lower=True)
    own, shared = spread * jnp.exp(here.log_scale), spread[:, None] * here.factor
    trace = jnp.sum(own**2) + jnp.sum(shared**2) - jnp.sum((basis * own) ** 2) - jnp.sum((basis @ shared) ** 2)
    return 0.5 * trace + jnp.sum(there.log_scale) + jnp.sum(jnp.log(jnp.diagonal(root)))
