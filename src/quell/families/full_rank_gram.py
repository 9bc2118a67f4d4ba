# SPDX-License-Identifier: Apache-2.0
r"""One draw from a full-rank Gaussian, and inner products of the factored gradients taken there.

A Cholesky path with cotangent \(g\) is \((g, \mathrm{tril}(g\epsilon^\top))\). Means have few numbers, so that their
inner products are plain ones. The inner product of the path's scale with any parameter-shaped \(V\) is
\(g^\top \mathrm{tril}(V)\epsilon\): the push-forward of \(V\) through the transport. So inner products need no vector
as long as the parameters, except for symmetric paths.
"""

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from quell.families.factored import Exact, FactoredGradient, Outer
from quell.families.symmetric_root import SymmetricRoot
from quell.families.transport import CHOLESKY, MIRRORED, SYMMETRIC, AbstractTransport

Latents = Float[Array, "sample latent"]
Scale = Float[Array, "latent latent"] | Float[Array, "latent"]
"""A scale's cotangent; a vector stands for a diagonal matrix."""


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


class FullRankGram:
    """The pieces of several samples, sorted by kind: Cholesky paths, shared, low-rank and heavy ones.

    A heavy piece is a full matrix per replicate: a symmetric path, or what came without structure. They are read as
    seldom as possible: once by all vectors that they are applied to, once by all weights, once by each pair.

    Args:
        at: the draw.
        samples: whose inner products are asked for.
    """

    def __init__(self, at: FullRankDraw, samples: Sequence[FactoredGradient]) -> None:
        """Sort the pieces."""
        self.at = at
        samples = [at.without_mirror(sample) for sample in samples]
        self.paths = _rows([self._cotangent(sample, CHOLESKY) for sample in samples])
        self.exacts = [(i, exact) for i, sample in enumerate(samples) for exact in sample.exacts]
        self.outers = [(i, outer) for i, sample in enumerate(samples) for outer in sample.outers]
        heavy = [i for i, s in enumerate(samples) if s.cotangent(SYMMETRIC) is not None or s.dense is not None]
        self.heavy_owners = heavy
        if heavy:
            self.heavy_scale = self._heavy([samples[i] for i in heavy])
            self.heavy_moved = self._push_heavy()
        self.means = _rows([self._mean(sample) for sample in samples])

    def location_gram(self) -> Float[Array, "variate variate"]:
        """The mean's part of the inner products, averaged over replicates."""
        return self.means @ self.means.T / self.at.noise.shape[0]

    def scale_gram(self) -> Float[Array, "variate variate"]:
        """The scale's part of the inner products, averaged over replicates."""
        own = self.paths @ (self.paths * self._lower(self.at.noise, self.at.noise).ravel()).T
        owners = [owner for owner, _ in self.exacts] + [owner for owner, _ in self.outers] + self.heavy_owners
        if not owners:
            return own / self.at.noise.shape[0]
        is_of = np.array(owners)[:, None] == np.arange(own.shape[0])
        cross = _by_owner(self.paths @ self._push().T, is_of)
        rest = _by_owner(_by_owner(self._pieces(), is_of).T, is_of)
        return (own + cross + cross.T + rest) / self.at.noise.shape[0]

    # Push-forwards through the Cholesky transport: inner products with paths

    def _push(self) -> Float[Array, "piece flat"]:
        pushed = [self._push_exact(exact) for _, exact in self.exacts]
        pushed += [self._push_outer(outer) for _, outer in self.outers]
        if self.heavy_owners:
            pushed += list(jnp.moveaxis(self.heavy_moved[..., 0], 1, 0))
        return _rows(pushed)

    def _push_exact(self, exact: Exact) -> Latents:
        return self.at.weight(exact)[:, None] * _times(self.at.noise, self._tangent(exact.value.scale))

    def _push_outer(self, outer: Outer) -> Latents:
        return jnp.sum(outer.left * self._lower(outer.right, self.at.noise[:, None]), axis=1)

    # Inner products of pieces, summed over replicates

    def _pieces(self) -> Float[Array, "piece piece"]:
        mixed = [[self._exact_outer(e, o) for _, o in self.outers] for _, e in self.exacts]
        outers = [[self._outer_outer(o, p) for _, p in self.outers] for _, o in self.outers]
        num_exacts, num_outers, num_heavy = len(self.exacts), len(self.outers), len(self.heavy_owners)
        corner, bottom = _matrix(mixed, num_exacts, num_outers), _matrix(outers, num_outers, num_outers)
        light = _block(self._exact_exact(), corner, bottom).astype(self.paths.dtype)
        if not num_heavy:
            return light
        rows = self._exacts_heavy() + self._outers_heavy()
        corner = jnp.stack(rows) if rows else jnp.zeros((0, num_heavy), self.paths.dtype)
        return _block(light, corner, self._heavy_heavy())

    def _exact_exact(self) -> Float[Array, "exact exact"]:
        if not self.exacts:
            return jnp.zeros((0, 0), self.paths.dtype)
        weights = _rows([self.at.weight(exact) for _, exact in self.exacts])
        scales = _pairwise([exact.value.scale for _, exact in self.exacts], _inner_scales)
        return scales * (weights @ weights.T)

    def _exact_outer(self, exact: Exact, outer: Outer) -> Float[Array, ""]:
        scales = jnp.sum(outer.left * _times(outer.right, self._tangent(exact.value.scale)), axis=(1, 2))
        return jnp.sum(self.at.weight(exact) * scales)

    def _outer_outer(self, one: Outer, two: Outer) -> Float[Array, ""]:
        lower = self._lower(one.right[:, :, None], two.right[:, None])
        return jnp.sum(one.left[:, :, None] * two.left[:, None] * lower)

    def _exacts_heavy(self) -> list[Float[Array, "heavy"]]:
        if not self.exacts:
            return []
        unweighted = jnp.sum(self.heavy_scale, 0)
        return [self._exact_heavy(exact, unweighted) for _, exact in self.exacts]

    def _exact_heavy(self, exact: Exact, scale: Array) -> Float[Array, "heavy"]:
        if exact.weight is not None:
            scale = jnp.sum(exact.weight[:, None, None, None] * self.heavy_scale, 0)
        value = exact.value.scale
        return jnp.einsum("kij,ij->k" if value.ndim == 2 else "kii,i->k", scale, value)

    def _outers_heavy(self) -> list[Float[Array, "heavy"]]:
        products, at = [], 1
        for _, outer in self.outers:
            end = at + outer.right.shape[1]
            products.append(jnp.einsum("rkim,rmi->k", self.heavy_moved[..., at:end], outer.left))
            at = end
        return products

    def _heavy_heavy(self) -> Float[Array, "heavy heavy"]:
        return _pairwise([self.heavy_scale[:, k] for k in range(len(self.heavy_owners))], _inner)

    # Pieces

    def _mean(self, sample: FactoredGradient) -> Latents:
        """The mean's part of a sample."""
        pieces = [*(path.cotangent for path in sample.paths), *(outer.location for outer in sample.outers)]
        pieces += [self.at.weight(exact)[:, None] * exact.value.loc for exact in sample.exacts]
        pieces += [] if sample.dense is None else [sample.dense.loc]
        return sum(pieces, jnp.zeros_like(self.at.noise))

    def _heavy(self, samples: Sequence[FactoredGradient]) -> Float[Array, "sample heavy latent latent"]:
        """The scale of heavy pieces."""
        paths = jnp.stack([self._cotangent(sample, SYMMETRIC) for sample in samples], axis=1)
        if any(sample.cotangent(SYMMETRIC) is not None for sample in samples):
            scale = self.at.mask * self.at.root.pullback_rows(paths, self.at.noise)
        else:
            scale = jnp.zeros((*paths.shape, paths.shape[-1]), paths.dtype)
        for k, sample in enumerate(samples):
            if sample.dense is not None:
                scale = scale.at[:, k].add(sample.dense.scale)
        return scale

    def _cotangent(self, sample: FactoredGradient, transport: AbstractTransport) -> Latents:
        found = sample.cotangent(transport)
        return jnp.zeros_like(self.at.noise) if found is None else found

    def _push_heavy(self) -> Float[Array, "sample heavy latent vector"]:
        """Heavy scales, as directions of the scale matrix, times the noise and all outer products' right sides."""
        num, heavy, dim, _ = self.heavy_scale.shape
        vectors = jnp.concatenate([self.at.noise[:, None], *(outer.right for _, outer in self.outers)], axis=1)
        moved = self.heavy_scale.reshape(num, heavy * dim, dim) @ jnp.swapaxes(vectors, 1, 2)
        # Directions and cotangents differ by the slope of the diagonal alone: no need to multiply whole matrices.
        diagonal = (self.at.slope - 1.0) * jnp.diagonal(self.heavy_scale, axis1=2, axis2=3)
        return moved.reshape(num, heavy, dim, -1) + diagonal[..., None] * jnp.swapaxes(vectors, 1, 2)[:, None]

    def _lower(self, one: Array, two: Array) -> Array:
        r"""Row sums of \(\mathrm{tril}\): \(\sum_{j\le i} b_j b'_j\), the diagonal weighed by its squared slope."""
        product = one * two
        return jnp.cumsum(product, axis=-1) + (self.at.slope**2 - 1.0) * product

    def _tangent(self, scale: Scale) -> Scale:
        """From a direction in the parameters to one of the scale matrix."""
        return scale * (self.at.mask if scale.ndim == 2 else self.at.slope)


def _by_owner(columns: Float[Array, "row piece"], is_of: Bool[np.ndarray, "piece variate"]) -> Array:
    """Sum the columns of each variate.

    Not by a product with zeros and ones, since zero times NaN would spread a NaN to all variates; nor by index, which a
    CPU does one entry at a time.
    """
    return jnp.sum(jnp.where(is_of, columns[:, :, None], 0.0), axis=1)


def _rows(arrays: Sequence[Array]) -> Float[Array, "row flat"]:
    return jnp.stack([array.ravel() for array in arrays])


def _times(rows: Float[Array, "*batch latent"], scale: Scale) -> Float[Array, "*batch latent"]:
    return rows @ scale.T if scale.ndim == 2 else rows * scale


def _inner(one: Array, two: Array) -> Float[Array, ""]:
    return jnp.sum(one * two)


def _inner_scales(one: Scale, two: Scale) -> Float[Array, ""]:
    if one.ndim != two.ndim:
        one, two = (jnp.diagonal(scale) if scale.ndim == 2 else scale for scale in (one, two))
    return _inner(one, two)


def _pairwise(arrays: Sequence[Array], inner: Callable[[Array, Array], Array]) -> Float[Array, "row row"]:
    """Inner products of a few large arrays: a matrix product of so few and so long rows is slower."""
    half = {(k, m): inner(arrays[k], arrays[m]) for k in range(len(arrays)) for m in range(k + 1)}
    entries = [[half[max(k, m), min(k, m)] for m in range(len(arrays))] for k in range(len(arrays))]
    return _matrix(entries, len(arrays), len(arrays))


def _matrix(entries: list[list[Array]], rows: int, columns: int) -> Float[Array, "row column"]:
    flat = [entry for row in entries for entry in row]
    return jnp.stack(flat).reshape(rows, columns) if flat else jnp.zeros((rows, columns))


def _block(top: Array, corner: Array, bottom: Array) -> Array:
    return jnp.block([[top, corner], [corner.T, bottom]])
