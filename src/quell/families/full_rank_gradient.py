# SPDX-License-Identifier: Apache-2.0
"""Factored gradients of a full-rank Gaussian: how they arise, and how they are carried to the parameters."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from quell.families.base import AbstractGradientAlgebra
from quell.families.factored import Exact, FactoredGradient, Outer
from quell.families.full_rank_draw import FullRankDraw
from quell.families.full_rank_gram import FullRankGram
from quell.families.full_rank_white import WhiteFullRank
from quell.families.location_scale import LocationScale, standard_log_prob
from quell.models.quadratic import Quadratic

Latents = Float[Array, "sample latent"]


class FullRankAlgebra(AbstractGradientAlgebra):
    """The gradients taken at one draw from a full-rank Gaussian.

    Args:
        at: the draw.
    """

    def __init__(self, at: FullRankDraw) -> None:
        """Keep the draw."""
        self.at = at

    # Latents

    @functools.cached_property
    def _precision_noise(self) -> Latents:
        r"""\(L^{-\top}\epsilon\)."""
        return _solve_rows(self.at.tril, self.at.noise, transpose=True)

    def latents(self, transport: str) -> Latents:
        if transport == "symmetric":
            return self.at.loc + self.at.root.apply(self.at.noise)
        moved = self.at.noise @ self.at.tril.T
        return self.at.loc - moved if transport == "mirrored" else self.at.loc + moved

    def log_probs(self, transport: str) -> Float[Array, "sample"]:
        # All transports have the determinant of L, up to its sign.
        return standard_log_prob(self.at.noise) - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.at.tril))))

    def log_prob_grads(self, transport: str) -> Latents:
        if transport == "symmetric":
            return -self.at.root.solve(self.at.noise)
        return self._precision_noise if transport == "mirrored" else -self._precision_noise

    # Estimators' samples

    def score(self, weight: Float[Array, "sample"], transport: str) -> FactoredGradient:
        exact = Exact(self._diagonal(-self.at.slope / jnp.diagonal(self.at.tril)), weight)
        grads = -weight[:, None] * self.log_prob_grads(transport)
        if transport != "symmetric":
            return FactoredGradient(paths={transport: grads}, exacts=(exact,))
        white = _solve_rows(self.at.tril, self.latents(transport) - self.at.loc, transpose=False)
        return FactoredGradient(exacts=(exact,), outers=(Outer(grads, grads[:, None], white[:, None]),))

    def transposed(self, grads: Latents) -> FactoredGradient:
        r"""The Cholesky path of gradients \(g\), with the scale part \((L^{-\top}\epsilon)(L^\top g)^\top\) instead."""
        return FactoredGradient(outers=(Outer(grads, self._precision_noise[:, None], (grads @ self.at.tril)[:, None]),))

    def entropy_grad(self) -> FactoredGradient:
        return FactoredGradient(exacts=(Exact(self._diagonal(self.at.slope / jnp.diagonal(self.at.tril))),))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        if not per_sample:
            return FactoredGradient(exacts=(Exact(self._quadratic_grad(quadratic)),))
        if quadratic.curvature.rank**2 > self.at.loc.shape[0]:
            return FactoredGradient(dense=jax.vmap(self._quadratic_grad)(quadratic))
        left, right = jax.vmap(lambda q: q.curvature.factors())(quadratic)
        location = jax.vmap(lambda q: q.grad(self.at.loc))(quadratic)
        return FactoredGradient(outers=(Outer(location, left, right @ self.at.tril),))

    def _quadratic_grad(self, quadratic: Quadratic) -> LocationScale:
        scale = self.at.mask * (quadratic.curvature.matmul(self.at.tril))
        return LocationScale(quadratic.grad(self.at.loc), scale)

    # To parameters

    def dense(self, parts: FactoredGradient) -> LocationScale:
        num = self.at.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.at.noise), jnp.zeros((num, *self.at.tril.shape), self.at.noise.dtype))
        parts = self.at.without_mirror(parts)
        pieces = [self._dense_path(*path) for path in parts.paths.items()]
        pieces += [_dense_exact(exact, self.at.weight(exact)) for exact in parts.exacts]
        pieces += [self._dense_outer(outer) for outer in parts.outers]
        pieces += [] if parts.dense is None else [parts.dense]
        return functools.reduce(_add, pieces, total)

    def pullback(self, parts: FactoredGradient) -> LocationScale:
        num = self.at.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.at.loc), jnp.zeros_like(self.at.tril))
        parts = self.at.without_mirror(parts)
        outers = [(o.location, o.left, o.right) for o in parts.outers]
        if "cholesky" in parts.paths:
            cotangent = parts.paths["cholesky"]
            outers.append((cotangent, cotangent[:, None], self.at.noise[:, None]))
        for location, left, right in outers:
            scale = jnp.einsum("nki,nkj->ij", left, right)
            total = _add(total, LocationScale(jnp.sum(location, 0), self.at.mask * (scale)))
        if "symmetric" in parts.paths:
            cotangent = parts.paths["symmetric"]
            outer = (cotangent @ self.at.root.basis).T @ (self.at.noise @ self.at.root.basis)
            scale = self.at.mask * (self.at.root.pullback(outer))
            total = _add(total, LocationScale(jnp.sum(cotangent, 0), scale))
        for exact in parts.exacts:
            mass = jnp.sum(self.at.weight(exact))
            total = _add(total, LocationScale(mass * exact.value.loc, mass * _matrix(exact.value.scale)))
        if parts.dense is not None:
            total = _add(total, jax.tree.map(lambda leaf: jnp.sum(leaf, 0), parts.dense))
        return jax.tree.map(lambda leaf: leaf / num, total)

    def gram(self, samples: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        gram = FullRankGram(self.at, samples)
        return gram.location_gram() + gram.scale_gram()

    def leaf_grams(self, samples: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        gram = FullRankGram(self.at, samples)
        return jnp.stack([gram.location_gram(), gram.scale_gram()])

    def whitened(self, samples: Sequence[FactoredGradient]) -> tuple["FullRankAlgebra", list[FactoredGradient]]:
        white = WhiteFullRank(self.at)
        return FullRankAlgebra(white.at), [white.parts(sample) for sample in samples]

    def _diagonal(self, values: Float[Array, "latent"]) -> LocationScale:
        """A value whose scale is diagonal, kept as a vector until it is carried to the parameters."""
        return LocationScale(jnp.zeros_like(self.at.loc), values)

    def _dense_path(self, name: str, cotangent: Latents) -> LocationScale:
        if name == "cholesky":
            return self._dense_outer(Outer(cotangent, cotangent[:, None], self.at.noise[:, None]))
        return LocationScale(cotangent, self.at.mask * self.at.root.pullback_rows(cotangent, self.at.noise))

    def _dense_outer(self, outer: Outer) -> LocationScale:
        return LocationScale(outer.location, self.at.mask * (jnp.einsum("nki,nkj->nij", outer.left, outer.right)))


def _solve_rows(tril: Float[Array, "latent latent"], rows: Latents, *, transpose: bool) -> Latents:
    r"""\(L^{-1} r\) or \(L^{-\top} r\) of each row, one at a time.

    BLAS's triangular solve for several right sides at once may wait for its threads a hundred times as long.
    """
    return jax.vmap(lambda row: solve_triangular(tril, row, lower=True, trans=int(transpose)))(rows)


def _add(one: LocationScale, two: LocationScale) -> LocationScale:
    return LocationScale(one.loc + two.loc, one.scale + two.scale)


def _dense_exact(exact: Exact, weight: Float[Array, "sample"]) -> LocationScale:
    return LocationScale(weight[:, None] * exact.value.loc, weight[:, None, None] * _matrix(exact.value.scale))


def _matrix(scale: Float[Array, "latent latent"] | Float[Array, "latent"]) -> Float[Array, "latent latent"]:
    return scale if scale.ndim == 2 else jnp.diag(scale)
