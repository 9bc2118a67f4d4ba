# SPDX-License-Identifier: Apache-2.0
"""How a Hessian becomes a curvature: from products with it, exactly or by random probes."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from quell.models.quadratic import AbstractCurvature, DenseCurvature, DiagonalCurvature, FactoredCurvature, SumCurvature

Products = Callable[[Float[Array, "latent column"]], Float[Array, "latent column"]]
"""From columns to the Hessian times them."""

NUM_PROBES = 8
"""Random signs for a diagonal."""


class AbstractSketch(eqx.Module):
    """A form of curvature, and the products with a Hessian that it is made of.

    Law: the result is symmetric, and its tree does not depend on the Hessian.
    """

    @abstractmethod
    def num_products(self, dim: int) -> int:
        """How many products with the Hessian it takes."""

    @abstractmethod
    def empty(self, dim: int) -> AbstractCurvature:
        """The form with zeros."""

    @abstractmethod
    def take(self, key: Key[Array, ""], products: Products, scale: Float[Array, "latent"]) -> AbstractCurvature:
        """The curvature.

        Args:
            key: for the probes.
            products: with the Hessian.
            scale: of each coordinate of the latent; where it is wide the curvature matters most.
        """


class DenseSketch(AbstractSketch):
    """The whole matrix: one product per coordinate."""

    def num_products(self, dim: int) -> int:
        return dim

    def empty(self, dim: int) -> DenseCurvature:
        return DenseCurvature(jnp.zeros((dim, dim)))

    def take(self, key: Key[Array, ""], products: Products, scale: Float[Array, "latent"]) -> DenseCurvature:
        matrix = products(jnp.eye(scale.shape[0], dtype=scale.dtype))
        return DenseCurvature(0.5 * (matrix + matrix.T))


class DiagonalSketch(AbstractSketch):
    """The diagonal, by random signs.

    References: Bekas, Kokiopoulou & Saad (2007).
    """

    num_probes: int = NUM_PROBES

    def num_products(self, dim: int) -> int:
        return self.num_probes

    def empty(self, dim: int) -> DiagonalCurvature:
        return DiagonalCurvature(jnp.zeros(dim))

    def take(self, key: Key[Array, ""], products: Products, scale: Float[Array, "latent"]) -> DiagonalCurvature:
        signs = jax.random.rademacher(key, (scale.shape[0], self.num_probes), scale.dtype)
        return _diagonal(signs, _scaled(products, scale)(signs), scale)


class LowRankSketch(AbstractSketch):
    r"""The directions of largest curvature, by a random sketch of the range, and the diagonal of the rest by signs.

    With \(Q\) a basis of \(H G\) for a random \(G\), the matrix is \(Q Q^\top H Q Q^\top\) plus a diagonal.

    References: Halko, Martinsson & Tropp (2011), section 5.
    """

    rank: int
    num_probes: int = NUM_PROBES

    def num_products(self, dim: int) -> int:
        return 2 * self._rank(dim) + self.num_probes

    def empty(self, dim: int) -> SumCurvature:
        rows, weight = jnp.zeros((self._rank(dim), dim)), jnp.zeros(self._rank(dim))
        return SumCurvature((DiagonalCurvature(jnp.zeros(dim)), FactoredCurvature(rows, weight)))

    def take(self, key: Key[Array, ""], products: Products, scale: Float[Array, "latent"]) -> SumCurvature:
        dim, rank = scale.shape[0], self._rank(scale.shape[0])
        range_key, sign_key = jax.random.split(key)
        scaled = _scaled(products, scale)
        basis = jnp.linalg.qr(scaled(jax.random.normal(range_key, (dim, rank), scale.dtype)))[0]
        signs = jax.random.rademacher(sign_key, (dim, self.num_probes), scale.dtype)
        images = scaled(jnp.concatenate([basis, signs], axis=1))
        core = basis.T @ images[:, :rank]
        weight, turn = jnp.linalg.eigh(0.5 * (core + core.T))
        found = FactoredCurvature((basis @ turn).T, weight)
        rest = _diagonal(signs, images[:, rank:] - found.matmul(signs), scale)
        return SumCurvature((rest, FactoredCurvature(found.rows / scale, weight)))

    def _rank(self, dim: int) -> int:
        return min(self.rank, dim)


def _scaled(products: Products, scale: Float[Array, "latent"]) -> Products:
    return lambda columns: scale[:, None] * products(scale[:, None] * columns)


def _diagonal(
    signs: Float[Array, "latent probe"], images: Float[Array, "latent probe"], scale: Float[Array, "latent"]
) -> DiagonalCurvature:
    return DiagonalCurvature(jnp.mean(signs * images, axis=1) / scale**2)
