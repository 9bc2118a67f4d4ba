# SPDX-License-Identifier: Apache-2.0
"""The geometry of a Gaussian whose covariance is a diagonal plus a matrix of low rank."""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families.geometry import AbstractGeometry
from quell.families.low_rank_params import LowRankParams, covariance_product, whitened_factor

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
    \((F_w + \lambda I)\delta = g\) with products of the metric alone, in units of \(s\). The metric is singular,
    because \(F\) may be rotated, and nearly so where \(F\) is small; damping keeps steps short there, where a straight
    line soon leaves the region in which the metric holds.

    Args:
        num_products: of conjugate gradients.
        damping: \(\lambda\).

    Cost: `num_products` times about twenty times `dim * rank**2` operations. Memory: a few copies of the parameters.
    """

    num_products: int = eqx.field(static=True, default=5)
    damping: float = eqx.field(static=True, default=1.0)

    def direction(self, params: LowRankParams, grad: LowRankParams) -> LowRankDirection:
        scale = jnp.exp(params.log_scale)
        steep = (grad.log_scale, grad.factor * scale[:, None])

        metric = _metric(params)

        def damped(step: tuple[Array, Array]) -> tuple[Array, Array]:
            return jax.tree.map(lambda b, s: b + self.damping * s, metric(step), step)

        solved, _ = jax.scipy.sparse.linalg.cg(damped, steep, maxiter=self.num_products)
        return LowRankDirection(grad.loc, *solved)

    def sq_norm(self, params: LowRankParams, direction: LowRankDirection) -> Float[Array, ""]:
        loc = covariance_product(params, direction.loc[None])[0] @ direction.loc
        step = (direction.log_scale, direction.factor)
        bent = _metric(params)(step)
        return loc + sum(jnp.sum(s * b) for s, b in zip(step, bent, strict=True))

    def origin(self, params: LowRankParams) -> LowRankParams:
        return LowRankParams(*(jnp.zeros_like(leaf) for leaf in params))

    def chart(self, params: LowRankParams, at: LowRankParams) -> LowRankParams:
        width = jnp.sqrt(jnp.exp(2.0 * params.log_scale) + jnp.sum(params.factor**2, axis=-1))
        log_scale = params.log_scale + at.log_scale / math.sqrt(2.0)
        return LowRankParams(params.loc + width * at.loc, log_scale, params.factor + width[:, None] * at.factor)

    def move(
        self, params: LowRankParams, direction: LowRankDirection, rate: Float[Array, ""], scale_rate: float = 1.0
    ) -> LowRankParams:
        # Within the bound the step is a straight line: unlike a precision, these parameters may have any value.
        longest = jnp.maximum(jnp.max(jnp.abs(direction.log_scale)), jnp.max(jnp.abs(direction.factor)))
        part = jnp.minimum(scale_rate * rate, LARGEST_CHANGE / jnp.maximum(longest, jnp.finfo(longest.dtype).tiny))
        moved = _with_least_scale(_moved(params, part * direction.log_scale, part * direction.factor))
        step = covariance_product(moved, direction.loc[None])[0]
        return LowRankParams(params.loc + rate * step, moved.log_scale, moved.factor)


def _metric(params: LowRankParams) -> Callable[[tuple[Array, Array]], tuple[Array, Array]]:
    r"""The metric of the scales times a step, in units of the diagonal scale.

    There the covariance is \(I + G G^\top\) with inverse \(P = I - B B^\top\). A step \((\delta, \phi)\) changes it by
    \(E = \mathrm{diag}(2\delta) + \phi G^\top + G \phi^\top\), and the product is the diagonal of \(P E P\), and
    \(P E P G\).
    """
    factor, root = whitened_factor(params)
    basis = jax.scipy.linalg.solve_triangular(root, factor.T, lower=True).T
    inside = factor - basis @ (basis.T @ factor)
    weight = jnp.sum(basis**2, axis=1)

    def product(step: tuple[Array, Array]) -> tuple[Array, Array]:
        own, shared = 2.0 * step[0], step[1]
        bent = own[:, None] * inside + shared @ (factor.T @ inside) + factor @ (shared.T @ inside)
        spread = shared - basis @ (basis.T @ shared)
        core = basis.T @ (own[:, None] * basis)
        diagonal = own * (1.0 - 2.0 * weight) + jnp.sum((basis @ core) * basis, axis=1)
        return diagonal + 2.0 * jnp.sum(spread * inside, axis=1), bent - basis @ (basis.T @ bent)

    return product


def _with_least_scale(params: LowRankParams) -> LowRankParams:
    r"""Keep \(s_i\) above \(\epsilon^{1/3} \|F_i\|\), with the machine's \(\epsilon\).

    Noise can make a scale so small beside its row of the factor that \(I + G^\top G\), with rows \(F_i / s_i\), has no
    Cholesky root in this precision. At the bound the scale has a share of \(\epsilon^{2/3}\) of the variance.
    """
    least = jnp.finfo(params.factor.dtype).eps ** (1 / 3) * jnp.sqrt(jnp.sum(params.factor**2, axis=1))
    return params._replace(log_scale=jnp.maximum(params.log_scale, jnp.log(least)))


def _moved(params: LowRankParams, log_scale: Array, factor: Array) -> LowRankParams:
    scale = jnp.exp(params.log_scale)[:, None]
    return LowRankParams(params.loc, params.log_scale + log_scale, params.factor + scale * factor)
