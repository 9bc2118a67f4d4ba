# SPDX-License-Identifier: Apache-2.0
"""Taylor expansions of a likelihood in the data: of a linear predictor, and of any by automatic differentiation."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from quell.data import DiskRows
from quell.data.access import like_rows
from quell.models.base import AbstractDataExpansion
from quell.models.likelihood import LogDensity
from quell.models.linear_data import LinearData
from quell.models.row_moments import RowMoments, row_moments


class LinearDataExpansion(AbstractDataExpansion):
    r"""Second-order expansion of \(\log p(y \mid x^\top z)\) in \((x, y)\) around the data's mean.

    With \(\delta t = (x - \bar x)^\top z\) and \(\delta y = y - \bar y\) it is a quadratic in the two
    numbers, so that its average over the data needs only their second moments.

    References: Wang et al. (2013), "Variance reduction for stochastic gradient optimization".
    """

    center: LinearData
    covariance: Float[Array, "latent latent"]
    cross: Float[Array, "latent"]
    variance: Float[Array, ""]
    log_density: LogDensity = eqx.field(static=True)

    @classmethod
    def from_data(cls, data: LinearData | DiskRows, log_density: LogDensity) -> "LinearDataExpansion":
        """Cache the first two moments of the data."""
        if isinstance(data, DiskRows):
            return cls.from_moments(row_moments(data), log_density)
        center = jax.tree.map(lambda x: jnp.mean(x, axis=0), data)
        features, targets = data.features - center.features, data.targets - center.targets
        num = targets.shape[0]
        return cls(
            center=LinearData(center.features[None], center.targets[None]),
            covariance=features.T @ features / num,
            cross=targets @ features / num,
            variance=targets @ targets / num,
            log_density=log_density,
        )

    @classmethod
    def from_moments(cls, moments: RowMoments, log_density: LogDensity) -> "LinearDataExpansion":
        """The same where the moments of features and target together are known; the target is the last number."""
        center, matrix = moments.center, moments.covariance
        return cls(
            center=LinearData(center.features[None], center.targets[None]),
            covariance=matrix[:-1, :-1],
            cross=matrix[-1, :-1],
            variance=matrix[-1, -1],
            log_density=log_density,
        )

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        predictor = (batch.features - self.center.features) @ z
        target = batch.targets - self.center.targets
        value, (slope_t, slope_y), ((tt, ty), (_, yy)) = self._derivatives(z)
        linear = slope_t * predictor + slope_y * target
        return value + linear + 0.5 * (tt * predictor**2 + yy * target**2) + ty * predictor * target

    def mean_log_likelihood(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        value, _, ((tt, ty), (_, yy)) = self._derivatives(z)
        return value + 0.5 * (tt * z @ self.covariance @ z + yy * self.variance) + ty * self.cross @ z

    def _derivatives(self, z: Float[Array, "latent"]) -> Any:
        at = (self.center.features[0] @ z, self.center.targets[0])
        first = jax.grad(self.log_density, (0, 1))
        return self.log_density(*at), first(*at), jax.jacfwd(first, (0, 1))(*at)


class FunctionDataExpansion(AbstractDataExpansion):
    r"""Second-order expansion of \(f(x) = \log p(x \mid z)\) in the datum \(x\) around the data's mean \(\bar x\).

    Only products of the Hessian \(H\) with steps from \(\bar x\) are taken. With rows \(c_k\) such that
    \(\sum_k c_k c_k^\top\) is the data's covariance, the average over the data is
    \(f(\bar x) + \tfrac12 \sum_k c_k^\top H c_k\).

    Cost: one gradient, and one product with \(H\) for each datum of a batch; for the average as many products as a
    datum has numbers, or as there are data if they are fewer.

    Args:
        center: the mean datum.
        factor: the rows \(c_k\), each of them shaped like a datum.
        arrays: what arrays the likelihood holds.
        function: the likelihood without its arrays.
        unflatten: from the flat latent to the one that the likelihood takes.

    References: Wang et al. (2013), "Variance reduction for stochastic gradient optimization".
    """

    center: PyTree[Float[Array, "..."]]
    factor: PyTree[Float[Array, "rank ..."]]
    arrays: PyTree
    function: Any = eqx.field(static=True)
    unflatten: Callable[[Array], Any] = eqx.field(static=True)

    @classmethod
    def from_data(
        cls, data: PyTree, likelihood: Callable[[Any, Any], Array], unflatten: Callable[[Array], Any]
    ) -> "FunctionDataExpansion | None":
        """Cache the first two moments of the data; `None` where they are not floating point, or empty."""
        leaves = jax.tree.leaves(like_rows(data, 1))
        if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves) or not any(x.size for x in leaves):
            return None
        arrays, function = eqx.partition(likelihood, eqx.is_array)
        if isinstance(data, DiskRows):
            moments = row_moments(data)
            return cls(moments.center, _factor_of(moments), arrays, function, unflatten)
        data = _at_least_single(data)
        center = jax.tree.map(lambda x: jnp.mean(x, axis=0), data)
        return cls(center, _factor(_steps(data, center), center), arrays, function, unflatten)

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        steps = _steps(_at_least_single(batch), self.center)
        value, slope = jax.value_and_grad(self._of_datum(z))(self.center)
        linear = jax.vmap(lambda step: _dot(slope, step))(steps)
        return value + linear + 0.5 * self._second(z, steps)

    def mean_log_likelihood(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        return self._of_datum(z)(self.center) + 0.5 * jnp.sum(self._second(z, self.factor))

    def _second(self, z: Float[Array, "latent"], steps: PyTree) -> Float[Array, "step"]:
        r"""\(s^\top H s\) for each step, forward over reverse: one product with the Hessian per step."""
        grad = jax.grad(self._of_datum(z))

        def along(step: PyTree) -> Array:
            return _dot(step, jax.jvp(grad, (self.center,), (step,))[1])

        return jax.vmap(along)(steps)

    def _of_datum(self, z: Float[Array, "latent"]) -> Callable[[PyTree], Array]:
        likelihood, latent = eqx.combine(self.arrays, self.function), self.unflatten(z)
        return lambda datum: likelihood(latent, jax.tree.map(lambda x: x[None], datum))[0]


def _at_least_single(data: PyTree) -> PyTree:
    """Half precision has no matrix factorisations, and its moments would not be those of the data."""
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), data)


def _steps(batch: PyTree, center: PyTree) -> PyTree:
    return jax.tree.map(lambda x, c: x - c, batch, center)


def _dot(left: PyTree, right: PyTree) -> Array:
    return jax.tree.reduce(jnp.add, jax.tree.map(jnp.vdot, left, right))


def _factor(steps: PyTree, center: PyTree) -> PyTree:
    """Rows whose outer products add up to the covariance: the triangle of a QR, as few rows as data or numbers."""
    matrix = jax.vmap(lambda step: ravel_pytree(step)[0])(steps)
    rows = jnp.linalg.qr(matrix, mode="r") / jnp.sqrt(jnp.asarray(matrix.shape[0], matrix.dtype))
    return jax.vmap(ravel_pytree(center)[1])(rows)


def _factor_of(moments: RowMoments) -> PyTree:
    """The same from the covariance itself: its eigenvectors, each as long as a standard deviation."""
    values, vectors = jnp.linalg.eigh(moments.covariance)
    return jax.vmap(ravel_pytree(moments.center)[1])((vectors * jnp.sqrt(jnp.maximum(values, 0.0))).T)
