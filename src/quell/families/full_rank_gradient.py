# SPDX-License-Identifier: Apache-2.0
r"""The algebra of factored gradients for a full-rank Gaussian.

A Cholesky path with cotangent \(g\) is \((g, \mathrm{tril}(g\epsilon^\top))\). Its inner product with any
parameter-shaped \((v, V)\) is \(g^\top(v + \mathrm{tril}(V)\epsilon)\): the push-forward of \((v, V)\) through the
transport. So inner products need no vector as long as the parameters, except for symmetric paths.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from quell.families.base import AbstractParticles
from quell.families.location_scale import LocationScale
from quell.families.symmetric_root import SymmetricRoot
from quell.parts import Exact, Outer, Parts
from quell.quadratic import Quadratic

Latents = Float[Array, "sample latent"]


class FullRankParticles(AbstractParticles):
    """One draw from a full-rank Gaussian.

    Args:
        loc: the mean.
        tril: the scale, lower triangular.
        slope: derivative of the scale's diagonal with respect to its parameters.
        noise: one row a replicate.
    """

    def __init__(
        self,
        loc: Float[Array, "latent"],
        tril: Float[Array, "latent latent"],
        slope: Float[Array, "latent"],
        noise: Latents,
    ) -> None:
        """Keep what the draw is made of."""
        self.loc, self.tril, self.slope, self.noise = loc, tril, slope, noise

    # Latents

    @functools.cached_property
    def root(self) -> SymmetricRoot:
        """The symmetric square root, decomposed on first use."""
        return SymmetricRoot.from_tril(self.tril)

    @functools.cached_property
    def _precision_noise(self) -> Latents:
        r"""\(L^{-\top}\epsilon\)."""
        return solve_triangular(self.tril, self.noise.T, lower=True, trans="T").T

    def latents(self, transport: str) -> Latents:
        moved = self.root.apply(self.noise) if transport == "symmetric" else self.noise @ self.tril.T
        return self.loc + moved

    def log_prob_grads(self, transport: str) -> Latents:
        return -self.root.solve(self.noise) if transport == "symmetric" else -self._precision_noise

    # Estimators' samples

    def score(self, weight: Float[Array, "sample"], transport: str) -> Parts:
        exact = Exact(self._diagonal(-self.slope / jnp.diagonal(self.tril)), weight)
        if transport != "symmetric":
            return Parts(paths={"cholesky": weight[:, None] * self._precision_noise}, exacts=(exact,))
        grads = -weight[:, None] * self.log_prob_grads(transport)
        white = solve_triangular(self.tril, (self.latents(transport) - self.loc).T, lower=True).T
        return Parts(exacts=(exact,), outers=(Outer(grads, grads[:, None], white[:, None]),))

    def entropy_grad(self) -> Parts:
        return Parts(exacts=(Exact(self._diagonal(self.slope / jnp.diagonal(self.tril))),))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> Parts:
        if not per_sample:
            return Parts(exacts=(Exact(self._quadratic_grad(quadratic)),))
        if 2 * quadratic.curvature.rank > self.loc.shape[0]:
            return Parts(dense=jax.vmap(self._quadratic_grad)(quadratic))
        left, right = jax.vmap(lambda q: q.curvature.factors())(quadratic)
        location = jax.vmap(lambda q: q.grad(self.loc))(quadratic)
        return Parts(outers=(Outer(location, left, right @ self.tril),))

    def _quadratic_grad(self, quadratic: Quadratic) -> LocationScale:
        scale = self._to_params(quadratic.curvature.matmul(self.tril))
        return LocationScale(quadratic.grad(self.loc), scale)

    # To parameters

    def dense(self, parts: Parts) -> LocationScale:
        num = self.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.noise), jnp.zeros((num, *self.tril.shape), self.noise.dtype))
        pieces = [self._dense_path(*path) for path in parts.paths.items()]
        pieces += [_dense_exact(exact, self.weight(exact)) for exact in parts.exacts]
        pieces += [self._dense_outer(outer) for outer in parts.outers]
        pieces += [] if parts.dense is None else [parts.dense]
        return functools.reduce(_add, pieces, total)

    def pullback(self, parts: Parts) -> LocationScale:
        num = self.noise.shape[0]
        total = LocationScale(jnp.zeros_like(self.loc), jnp.zeros_like(self.tril))
        outers = [(o.location, o.left, o.right) for o in parts.outers]
        if "cholesky" in parts.paths:
            cotangent = parts.paths["cholesky"]
            outers.append((cotangent, cotangent[:, None], self.noise[:, None]))
        for location, left, right in outers:
            scale = jnp.einsum("nki,nkj->ij", left, right)
            total = _add(total, LocationScale(jnp.sum(location, 0), self._to_params(scale)))
        if "symmetric" in parts.paths:
            cotangent = parts.paths["symmetric"]
            outer = (cotangent @ self.root.basis).T @ (self.noise @ self.root.basis)
            scale = self._to_params(self.root.pullback(outer))
            total = _add(total, LocationScale(jnp.sum(cotangent, 0), scale))
        for exact in parts.exacts:
            mass = jnp.sum(self.weight(exact))
            total = _add(total, jax.tree.map(lambda leaf, m=mass: m * leaf, exact.value))
        if parts.dense is not None:
            total = _add(total, jax.tree.map(lambda leaf: jnp.sum(leaf, 0), parts.dense))
        return jax.tree.map(lambda leaf: leaf / num, total)

    # Inner products

    def gram(self, samples: Sequence[Parts]) -> Float[Array, "variate variate"]:
        empty = jnp.zeros_like(self.noise)
        paths = _rows([sample.paths.get("cholesky", empty) for sample in samples])
        metric = 1.0 + self._lower(self.noise, self.noise)
        total = paths @ (paths * metric.ravel()).T
        rest = _Rest(self, [self._without_path(sample) for sample in samples])
        cross = paths @ _rows(rest.push()).T
        return (total + cross + cross.T + rest.gram()) / self.noise.shape[0]

    def push_exact(self, exact: Exact) -> Latents:
        """Push-forward of a parameter-shaped value through the Cholesky transport."""
        scale = exact.value.scale + jnp.diag((self.slope - 1.0) * jnp.diagonal(exact.value.scale))
        return self.weight(exact)[:, None] * (exact.value.loc + self.noise @ scale.T)

    def push_outer(self, outer: Outer) -> Latents:
        """Push-forward of a low-rank value through the Cholesky transport."""
        lower = self._lower(outer.right, self.noise[:, None])
        return outer.location + jnp.sum(outer.left * lower, axis=1)

    def push_dense(self, dense: LocationScale) -> Latents:
        """Push-forward of a per-replicate value through the Cholesky transport."""
        inner = jnp.einsum("nij,nj->ni", dense.scale, self.noise)
        diagonal = jnp.diagonal(dense.scale, axis1=1, axis2=2)
        return dense.loc + inner + (self.slope - 1.0) * diagonal * self.noise

    def inner_outers(self, one: Outer, two: Outer) -> Float[Array, ""]:
        """Sum over replicates of the inner products of two low-rank values."""
        lower = self._lower(one.right[:, :, None], two.right[:, None])
        scales = jnp.sum(one.left[:, :, None] * two.left[:, None] * lower)
        return jnp.sum(one.location * two.location) + scales

    def inner_exact_outer(self, exact: Exact, outer: Outer) -> Float[Array, ""]:
        """Sum over replicates of the inner products of a shared and a low-rank value."""
        scale = exact.value.scale + jnp.diag((self.slope - 1.0) * jnp.diagonal(exact.value.scale))
        scales = jnp.sum(outer.left * (outer.right @ scale.T), axis=(1, 2))
        return jnp.sum(self.weight(exact) * (outer.location @ exact.value.loc + scales))

    def _without_path(self, parts: Parts) -> Parts:
        """Everything but the Cholesky path; a symmetric path becomes dense, and then all the rest does."""
        rest = {name: cotangent for name, cotangent in parts.paths.items() if name != "cholesky"}
        without = Parts(rest, parts.exacts, parts.outers, parts.dense)
        return Parts(dense=self.dense(without)) if rest or parts.dense is not None else without

    def _lower(self, one: Array, two: Array) -> Array:
        r"""Row sums of \(\mathrm{tril}\): \(\sum_{j\le i} b_j b'_j\), the diagonal weighed by its squared slope."""
        product = one * two
        return jnp.cumsum(product, axis=-1) + (self.slope**2 - 1.0) * product

    def _to_params(self, scale: Float[Array, "*batch latent latent"]) -> Float[Array, "*batch latent latent"]:
        """From a cotangent of the full scale matrix to one of its parameters."""
        eye = jnp.eye(self.slope.shape[0], dtype=scale.dtype)
        return jnp.tril(scale) * (1.0 + eye * (self.slope - 1.0))

    def _diagonal(self, values: Float[Array, "latent"]) -> LocationScale:
        return LocationScale(jnp.zeros_like(self.loc), jnp.diag(values))

    def weight(self, exact: Exact) -> Float[Array, "sample"]:
        """The factors of a shared value, one a replicate."""
        return jnp.ones_like(self.noise[:, 0]) if exact.weight is None else exact.weight

    def _dense_path(self, name: str, cotangent: Latents) -> LocationScale:
        if name == "cholesky":
            return self._dense_outer(Outer(cotangent, cotangent[:, None], self.noise[:, None]))
        basis = self.root.basis
        outer = (cotangent @ basis)[:, :, None] * (self.noise @ basis)[:, None]
        return LocationScale(cotangent, self._to_params(self.root.pullback(outer)))

    def _dense_outer(self, outer: Outer) -> LocationScale:
        return LocationScale(
            outer.location, self._to_params(jnp.einsum("nki,nkj->nij", outer.left, outer.right))
        )


class _Rest:
    """What remains of samples without their Cholesky paths: few shared, low-rank and dense pieces."""

    def __init__(self, at: FullRankParticles, samples: Sequence[Parts]) -> None:
        self.at, self.num = at, len(samples)
        self.exacts = [(i, e) for i, sample in enumerate(samples) for e in sample.exacts]
        self.outers = [(i, o) for i, sample in enumerate(samples) for o in sample.outers]
        self.denses = [(i, sample.dense) for i, sample in enumerate(samples) if sample.dense is not None]

    def push(self) -> list[Latents]:
        """Push-forward of each sample's rest through the Cholesky transport."""
        pushed = [jnp.zeros_like(self.at.noise)] * self.num
        for pieces, push in (
            (self.exacts, self.at.push_exact),
            (self.outers, self.at.push_outer),
            (self.denses, self.at.push_dense),
        ):
            for owner, piece in pieces:
                pushed[owner] = pushed[owner] + push(piece)
        return pushed

    def gram(self) -> Float[Array, "variate variate"]:
        """Inner products of the rests, summed over replicates."""
        pieces = [*self.exacts, *self.outers, *self.denses]
        owners = np.array([owner for owner, _ in pieces], dtype=int)
        member = jnp.asarray(np.arange(self.num)[:, None] == owners, self.at.noise.dtype)
        return member @ self._pieces_gram() @ member.T

    def _pieces_gram(self) -> Float[Array, "piece piece"]:
        """Inner products of all pieces: shared, low-rank and dense ones, in this order."""
        mixed = [[self.at.inner_exact_outer(e, o) for _, o in self.outers] for _, e in self.exacts]
        outers = [[self.at.inner_outers(o, p) for _, p in self.outers] for _, o in self.outers]
        light = _block(
            self._exact_gram(),
            _matrix(mixed, len(self.exacts), len(self.outers)),
            _matrix(outers, len(self.outers), len(self.outers)),
        )
        if not self.denses:
            return light
        pieces = [Parts(exacts=(e,)) for _, e in self.exacts] + [Parts(outers=(o,)) for _, o in self.outers]
        heavy = _rows([_flat(dense) for _, dense in self.denses])
        if not pieces:
            return heavy @ heavy.T
        return _block(light, _rows([_flat(self.at.dense(p)) for p in pieces]) @ heavy.T, heavy @ heavy.T)

    def _exact_gram(self) -> Float[Array, "exact exact"]:
        if not self.exacts:
            return jnp.zeros((0, 0))
        values = _rows([jnp.concatenate([e.value.loc, e.value.scale.ravel()]) for _, e in self.exacts])
        weights = _rows([self.at.weight(e) for _, e in self.exacts])
        return (values @ values.T) * (weights @ weights.T)


def _matrix(entries: list[list[Array]], rows: int, columns: int) -> Array:
    flat = [entry for row in entries for entry in row]
    return jnp.stack(flat).reshape(rows, columns) if flat else jnp.zeros((rows, columns))


def _block(top: Array, corner: Array, bottom: Array) -> Array:
    return jnp.block([[top, corner], [corner.T, bottom]])


def _rows(arrays: Sequence[Array]) -> Array:
    return jnp.stack([array.ravel() for array in arrays])


def _flat(dense: LocationScale) -> Array:
    return jnp.concatenate([dense.loc, dense.scale.reshape(dense.loc.shape[0], -1)], axis=1)


def _add(one: LocationScale, two: LocationScale) -> LocationScale:
    return LocationScale(one.loc + two.loc, one.scale + two.scale)


def _dense_exact(exact: Exact, weight: Float[Array, "sample"]) -> LocationScale:
    return LocationScale(weight[:, None] * exact.value.loc, weight[:, None, None] * exact.value.scale)
