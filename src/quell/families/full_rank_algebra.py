# SPDX-License-Identifier: Apache-2.0
r"""Factored gradients of a full-rank Gaussian: how they arise, and how they are carried to the parameters.

Whitened coordinates: moving \(\mu\) by \(Lm\) and \(L\) to \(L(I + A)\), with \(A\) lower triangular, changes the
distribution by \((\|m\|^2 + \sum_{i>j} A_{ij}^2)/2 + \sum_i A_{ii}^2\) nats, to second order. A gradient \((g, X)\)
with respect to \((\mu, L)\) is \((L^\top g, \mathrm{tril}(L^\top X))\) there, and the inverse Fisher metric is plain.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from quell.families.algebra import AbstractGradientAlgebra
from quell.families.factored import Exact, FactoredGradient, Outer, Path
from quell.families.full_rank_geometry import matrix_cotangent
from quell.families.full_rank_gram import FullRankDraw, FullRankGram
from quell.families.location_scale import LocationScale, standard_log_prob
from quell.families.transport import CHOLESKY, MIRRORED, SYMMETRIC, AbstractTransport
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

    def latents(self, transport: AbstractTransport) -> Latents:
        if transport == SYMMETRIC:
            return self.at.loc + self.at.root.apply(self.at.noise)
        moved = self.at.noise @ self.at.tril.T
        return self.at.loc - moved if transport == MIRRORED else self.at.loc + moved

    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        # All transports have the determinant of L, up to its sign.
        return standard_log_prob(self.at.noise) - jnp.sum(jnp.log(jnp.abs(jnp.diagonal(self.at.tril))))

    def log_prob_grads(self, transport: AbstractTransport) -> Latents:
        if transport == SYMMETRIC:
            return -self.at.root.solve(self.at.noise)
        return self._precision_noise if transport == MIRRORED else -self._precision_noise

    # Estimators' samples

    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        exact = Exact(self._diagonal(-self.at.slope / jnp.diagonal(self.at.tril)), weight)
        grads = -weight[:, None] * self.log_prob_grads(transport)
        if transport != SYMMETRIC:
            return FactoredGradient((Path(transport, grads),), (exact,))
        white = _solve_rows(self.at.tril, self.latents(transport) - self.at.loc, transpose=False)
        return FactoredGradient(exacts=(exact,), outers=(Outer(grads, grads[:, None], white[:, None]),))

    def transposed(self, grads: Latents) -> FactoredGradient:
        r"""The Cholesky path of gradients \(g\), with the scale part \((L^{-\top}\epsilon)(L^\top g)^\top\) instead."""
        return FactoredGradient(outers=(Outer(grads, self._precision_noise[:, None], (grads @ self.at.tril)[:, None]),))

    def entropy_grad(self) -> FactoredGradient:
        return FactoredGradient.from_exact(self._diagonal(self.at.slope / jnp.diagonal(self.at.tril)))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        if not per_sample:
            return FactoredGradient.from_exact(self._quadratic_grad(quadratic))
        if quadratic.curvature.rank**2 > self.at.loc.shape[0]:
            return FactoredGradient(dense=jax.vmap(self._quadratic_grad)(quadratic))
        left, right = jax.vmap(lambda q: q.curvature.factors())(quadratic)
        location = jax.vmap(lambda q: q.grad(self.at.loc))(quadratic)
        return FactoredGradient(outers=(Outer(location, left, right @ self.at.tril),))

    def _quadratic_grad(self, quadratic: Quadratic) -> LocationScale:
        scale = self.at.mask * quadratic.curvature.matmul(self.at.tril)
        return LocationScale(quadratic.grad(self.at.loc), scale)

    # To parameters

    def dense(self, gradient: FactoredGradient) -> LocationScale:
        num = self.at.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.at.noise), jnp.zeros((num, *self.at.tril.shape), self.at.noise.dtype))
        gradient = self.at.without_mirror(gradient)
        pieces = [self._dense_path(path) for path in gradient.paths]
        pieces += [_dense_exact(exact, self.at.weight(exact)) for exact in gradient.exacts]
        pieces += [self._dense_outer(outer) for outer in gradient.outers]
        pieces += [] if gradient.dense is None else [gradient.dense]
        return functools.reduce(_add, pieces, total)

    def pullback(self, gradient: FactoredGradient) -> LocationScale:
        num = self.at.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.at.loc), jnp.zeros_like(self.at.tril))
        gradient = self.at.without_mirror(gradient)
        outers = [(o.location, o.left, o.right) for o in gradient.outers]
        if (cotangent := gradient.cotangent(CHOLESKY)) is not None:
            outers.append((cotangent, cotangent[:, None], self.at.noise[:, None]))
        for location, left, right in outers:
            scale = jnp.einsum("nki,nkj->ij", left, right)
            total = _add(total, LocationScale(jnp.sum(location, 0), self.at.mask * scale))
        if (cotangent := gradient.cotangent(SYMMETRIC)) is not None:
            outer = (cotangent @ self.at.root.basis).T @ (self.at.noise @ self.at.root.basis)
            scale = self.at.mask * self.at.root.pullback(outer)
            total = _add(total, LocationScale(jnp.sum(cotangent, 0), scale))
        for exact in gradient.exacts:
            mass = jnp.sum(self.at.weight(exact))
            total = _add(total, LocationScale(mass * exact.value.loc, mass * _matrix(exact.value.scale)))
        if gradient.dense is not None:
            total = _add(total, jax.tree.map(lambda leaf: jnp.sum(leaf, 0), gradient.dense))
        return jax.tree.map(lambda leaf: leaf / num, total)

    def gram(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        gram = FullRankGram(self.at, gradients)
        return gram.location_gram() + gram.scale_gram()

    def leaf_grams(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        gram = FullRankGram(self.at, gradients)
        return jnp.stack([gram.location_gram(), gram.scale_gram()])

    def whitened(self, gradients: Sequence[FactoredGradient]) -> tuple["FullRankAlgebra", list[FactoredGradient]]:
        slope = jnp.full_like(self.at.slope, math.sqrt(0.5))
        identity = jnp.eye(*self.at.tril.shape, dtype=slope.dtype)
        white = FullRankDraw(jnp.zeros_like(self.at.loc), identity, slope, self.at.noise)
        return FullRankAlgebra(white), [self._whitened(gradient, white) for gradient in gradients]

    def _diagonal(self, values: Float[Array, "latent"]) -> LocationScale:
        """A value whose scale is diagonal, kept as a vector until it is carried to the parameters."""
        return LocationScale(jnp.zeros_like(self.at.loc), values)

    def _dense_path(self, path: Path) -> LocationScale:
        cotangent = path.cotangent
        if path.transport == CHOLESKY:
            return self._dense_outer(Outer(cotangent, cotangent[:, None], self.at.noise[:, None]))
        return LocationScale(cotangent, self.at.mask * self.at.root.pullback_rows(cotangent, self.at.noise))

    def _dense_outer(self, outer: Outer) -> LocationScale:
        return LocationScale(outer.location, self.at.mask * jnp.einsum("nki,nkj->nij", outer.left, outer.right))

    # To whitened coordinates

    def _whitened(self, sample: FactoredGradient, white: FullRankDraw) -> FactoredGradient:
        r"""One gradient, still factored.

        Paths stay paths with the same noise, because \(\mathrm{tril}(L^\top \mathrm{tril}(g\epsilon^\top))\) is
        \(\mathrm{tril}((L^\top g)\epsilon^\top)\); symmetric ones become dense.
        """
        tril, sample = self.at.tril, self.at.without_mirror(sample)
        dense = None if sample.dense is None else self._whitened_value(sample.dense, white)
        if (cotangent := sample.cotangent(SYMMETRIC)) is not None:
            raw = self.at.root.pullback_rows(cotangent, self.at.noise)
            path = LocationScale(cotangent @ tril, white.mask * (tril.T @ raw))
            dense = path if dense is None else _add(dense, path)
        return FactoredGradient(
            tuple(Path(path.transport, path.cotangent @ tril) for path in sample.without(SYMMETRIC).paths),
            tuple(Exact(self._whitened_value(exact.value, white), exact.weight) for exact in sample.exacts),
            tuple(Outer(outer.location @ tril, outer.left @ tril, outer.right) for outer in sample.outers),
            dense,
        )

    def _whitened_value(self, value: LocationScale, white: FullRankDraw) -> LocationScale:
        loc, tril, slope = value.loc @ self.at.tril, self.at.tril, self.at.slope
        if value.scale.ndim == value.loc.ndim:  # a diagonal matrix stays one
            return LocationScale(loc, white.slope * jnp.diagonal(tril) * (value.scale / slope))
        return LocationScale(loc, white.mask * (tril.T @ matrix_cotangent(value.scale, slope)))


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
