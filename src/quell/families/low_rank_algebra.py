# SPDX-License-Identifier: Apache-2.0
r"""Gradients of a low-rank Gaussian, kept factored: no array per replicate that is as long as the parameters.

A path with cotangent \(c\) has \(c\) for the mean, \(c \odot s \odot \epsilon_1\) for \(\log s\) and
\(c\,\epsilon_2^\top\) for the factor. A symmetric matrix \(A = \sum_k a_k b_k^\top\), twice a gradient in the
covariance, has \(s^2 \odot \mathrm{diag} A\) and \(A F\). Both are products of vectors.
"""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.families.coordinate_blocks import AbstractBlockAlgebra, DenseBlock, Start, block_of
from quell.families.factored import Exact, FactoredGradient, Outer
from quell.families.low_rank_params import LowRankParams, whitened_factor
from quell.families.transport import AbstractTransport
from quell.models.quadratic import Quadratic

if TYPE_CHECKING:
    from quell.families.low_rank import LowRank


class LowRankAlgebra(AbstractBlockAlgebra):
    """One draw from a low-rank Gaussian.

    Args:
        family: that was drawn from.
        params: of the family.
        noise: of the draw: one number per coordinate, then one per column of the factor.
    """

    def __init__(self, family: "LowRank", params: LowRankParams, noise: Float[Array, "sample noise"]) -> None:
        """Keep the two kinds of noise and the scale."""
        self.family, self.params, self.scale = family, params, jnp.exp(params.log_scale)
        self.own, self.shared = noise[:, : family.dim], noise[:, family.dim :]

    @property
    def num_coordinates(self) -> int:
        return self.family.dim

    @property
    def numbers_per_coordinate(self) -> int:
        return (2 + self.family.rank) * self.own.shape[0]

    def latents(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        return self.params.loc + self.scale * self.own + self.shared @ self.params.factor.T

    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        return jax.vmap(lambda z: self.family.log_prob(self.params, z))(self.latents(transport))

    def log_prob_grads(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        factor, root = whitened_factor(self.params)
        white = self.own + self.shared @ factor.T
        inner = jax.scipy.linalg.cho_solve((root, True), factor.T @ white.T)
        return -(white - inner.T @ factor.T) / self.scale

    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        grads = self.log_prob_grads(transport)
        weighted = weight[:, None] * grads
        exact = Exact(jax.tree.map(jnp.negative, jax.grad(self.family.entropy)(self.params)), weight)
        return FactoredGradient(exacts=(exact,), outers=(Outer(-weighted, weighted[:, None], grads[:, None]),))

    def entropy_grad(self) -> FactoredGradient:
        return FactoredGradient.from_exact(jax.grad(self.family.entropy)(self.params))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        def grad(one: Quadratic) -> LowRankParams:
            curvature = one.curvature
            bend = self.scale**2 * curvature.diagonal()
            return LowRankParams(one.grad(self.params.loc), bend, curvature.matmul(self.params.factor))

        if not per_sample:
            return FactoredGradient.from_exact(grad(quadratic))
        if quadratic.curvature.rank > self.family.rank:  # then a dense gradient is no larger than the curvature itself
            return FactoredGradient(dense=jax.vmap(grad)(quadratic))
        location = jax.vmap(lambda one: one.grad(self.params.loc))(quadratic)
        return FactoredGradient(outers=(Outer(location, *jax.vmap(lambda one: one.curvature.factors())(quadratic)),))

    def dense_block(self, gradient: FactoredGradient) -> DenseBlock:
        projected = [outer.right @ self.params.factor for outer in gradient.outers]
        num = self.own.shape[0]

        def block(start: Start, size: int) -> LowRankParams:
            own, scale = block_of((self.own, self.scale), start, size)
            total = LowRankParams(
                jnp.zeros_like(own), jnp.zeros_like(own), jnp.zeros((num, size, self.family.rank), own.dtype)
            )
            pieces = [
                LowRankParams(c, c * own * scale, c[:, :, None] * self.shared[:, None])
                for c in (path.cotangent for path in block_of(gradient.paths, start, size))
            ]
            for exact in gradient.exacts:
                weight = jnp.ones(num, own.dtype) if exact.weight is None else exact.weight
                value = _block(exact.value, start, size)
                pieces.append(jax.tree.map(lambda v, w=weight: jnp.tensordot(w, v, 0), value))
            for outer, right in zip(block_of(gradient.outers, start, size), projected, strict=True):
                diagonal = scale**2 * jnp.sum(outer.left * outer.right, axis=1)
                pieces.append(LowRankParams(outer.location, diagonal, jnp.einsum("skd,skr->sdr", outer.left, right)))
            if gradient.dense is not None:
                pieces.append(_block(gradient.dense, start, size))
            return _sum([total, *pieces])

        return block

    def pullback(self, gradient: FactoredGradient) -> LowRankParams:
        num = self.own.shape[0]
        pieces = [
            LowRankParams(jnp.mean(c, axis=0), self.scale * jnp.mean(c * self.own, axis=0), c.T @ self.shared / num)
            for c in (path.cotangent for path in gradient.paths)
        ]
        for exact in gradient.exacts:
            weight = 1.0 if exact.weight is None else jnp.mean(exact.weight)
            pieces.append(jax.tree.map(lambda v, w=weight: w * v, exact.value))
        for outer in gradient.outers:
            diagonal = self.scale**2 * jnp.sum(outer.left * outer.right, axis=(0, 1)) / num
            factor = jnp.einsum("skd,skr->dr", outer.left, outer.right @ self.params.factor) / num
            pieces.append(LowRankParams(jnp.mean(outer.location, axis=0), diagonal, factor))
        if gradient.dense is not None:
            pieces.append(jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradient.dense))
        return _sum([jax.tree.map(jnp.zeros_like, self.params), *pieces])


def _block(value: LowRankParams, start: Start, size: int) -> LowRankParams:
    loc, log_scale = block_of((value.loc, value.log_scale), start, size)
    return LowRankParams(loc, log_scale, block_of(value.factor, start, size, axis=-2))


def _sum(pieces: Sequence[LowRankParams]) -> LowRankParams:
    """The sum, in the precision of the first; data may have another than the parameters."""
    return jax.tree.map(lambda *leaves: functools.reduce(jnp.add, leaves).astype(leaves[0].dtype), *pieces)
