# SPDX-License-Identifier: Apache-2.0
"""Quadratic functions of the latent, with curvature in the form that is cheapest for its source.

A quadratic is the common language of closed forms: terms hand one in, families integrate it through
their first two moments.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_MOST_KEPT = 2**22
"""Numbers whose squares are kept, for a product with them: on several devices of a CPU a sum takes ten times longer."""


def squares_in_rows(rows: Float[Array, "row latent"], weight: Float[Array, "latent"]) -> Float[Array, "row"]:
    r"""Return \(\sum_j w_j x_{kj}^2\) for each row \(k\)."""
    return rows**2 @ weight if rows.size <= _MOST_KEPT else jnp.sum(rows**2 * weight, axis=-1)


def squares_over_rows(weight: Float[Array, "row"], rows: Float[Array, "row latent"]) -> Float[Array, "latent"]:
    r"""Return \(\sum_k w_k x_{kj}^2\) for each coordinate \(j\)."""
    return weight @ rows**2 if rows.size <= _MOST_KEPT else jnp.sum(weight[:, None] * rows**2, axis=0)


class AbstractCurvature(eqx.Module):
    r"""A symmetric matrix \(H\), seen only through its products."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """Upper bound of the rank that the form makes visible."""

    @abstractmethod
    def matmul(self, columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        r"""Return \(H M\) for a matrix of columns."""

    @abstractmethod
    def diagonal(self) -> Float[Array, "latent"]:
        r"""Return the diagonal of \(H\)."""

    @abstractmethod
    def factors(self) -> tuple[Float[Array, "rank latent"], Float[Array, "rank latent"]]:
        r"""Return rows \(l_k, r_k\) with \(H = \sum_k l_k r_k^\top\)."""

    @abstractmethod
    def scale(self, factor: float) -> "AbstractCurvature":
        r"""Return the matrix times a number."""

    @abstractmethod
    def mean(self) -> "AbstractCurvature":
        """Return the mean of several matrices, which are stacked along a leading axis."""

    def matvec(self, vector: Float[Array, "latent"]) -> Float[Array, "latent"]:
        r"""Return \(H v\)."""
        return self.matmul(vector[:, None])[:, 0]

    def trace_with(
        self, variance: Float[Array, "latent"], product: Callable[[Array], Float[Array, "rank latent"]]
    ) -> Float[Array, ""]:
        r"""Return the trace of \(H \Sigma\); `variance` is \(\Sigma\)'s diagonal, `product` multiplies rows with it."""
        left, right = self.factors()
        return jnp.sum(left * product(right))


class DenseCurvature(AbstractCurvature):
    """Curvature stored as a matrix, as automatic differentiation gives it."""

    matrix: Float[Array, "*batch latent latent"]

    @property
    def rank(self) -> int:
        return self.matrix.shape[-1]

    def matmul(self, columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        return self.matrix @ columns

    def diagonal(self) -> Float[Array, "latent"]:
        return jnp.diagonal(self.matrix)

    def factors(self) -> tuple[Float[Array, "rank latent"], Float[Array, "rank latent"]]:
        return self.matrix.T, jnp.eye(self.rank, dtype=self.matrix.dtype)

    def scale(self, factor: float) -> "DenseCurvature":
        return DenseCurvature(factor * self.matrix)

    def mean(self) -> "DenseCurvature":
        return DenseCurvature(jnp.mean(self.matrix, axis=0))


class FactoredCurvature(AbstractCurvature):
    r"""Curvature \(\sum_k s_k x_k x_k^\top\), as a linear predictor gives it."""

    rows: Float[Array, "*batch rank latent"]
    weight: Float[Array, "*batch rank"]

    @property
    def rank(self) -> int:
        return self.rows.shape[-2]

    def matmul(self, columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        return self.rows.T @ (self.weight[:, None] * (self.rows @ columns))

    def diagonal(self) -> Float[Array, "latent"]:
        return squares_over_rows(self.weight, self.rows)

    def factors(self) -> tuple[Float[Array, "rank latent"], Float[Array, "rank latent"]]:
        return self.weight[:, None] * self.rows, self.rows

    def scale(self, factor: float) -> "FactoredCurvature":
        return FactoredCurvature(self.rows, factor * self.weight)

    def mean(self) -> "FactoredCurvature":
        return FactoredCurvature(jnp.concatenate(self.rows), jnp.concatenate(self.weight) / self.rows.shape[0])


class DiagonalCurvature(AbstractCurvature):
    """Curvature that is a diagonal matrix, as independent Gaussian priors give it."""

    values: Float[Array, "*batch latent"]

    @property
    def rank(self) -> int:
        return self.values.shape[-1]

    def matmul(self, columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        return self.values[:, None] * columns

    def diagonal(self) -> Float[Array, "latent"]:
        return self.values

    def factors(self) -> tuple[Float[Array, "rank latent"], Float[Array, "rank latent"]]:
        return jnp.diag(self.values), jnp.eye(self.rank, dtype=self.values.dtype)

    def scale(self, factor: float) -> "DiagonalCurvature":
        return DiagonalCurvature(factor * self.values)

    def mean(self) -> "DiagonalCurvature":
        return DiagonalCurvature(jnp.mean(self.values, axis=0))

    def trace_with(
        self, variance: Float[Array, "latent"], product: Callable[[Array], Float[Array, "rank latent"]]
    ) -> Float[Array, ""]:
        return self.values @ variance


class SumCurvature(AbstractCurvature):
    """Curvature in several pieces, such as a diagonal plus a matrix of low rank."""

    pieces: tuple[AbstractCurvature, ...]

    @property
    def rank(self) -> int:
        return sum(piece.rank for piece in self.pieces)

    def matmul(self, columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        return functools.reduce(jnp.add, [piece.matmul(columns) for piece in self.pieces])

    def diagonal(self) -> Float[Array, "latent"]:
        return functools.reduce(jnp.add, [piece.diagonal() for piece in self.pieces])

    def factors(self) -> tuple[Float[Array, "rank latent"], Float[Array, "rank latent"]]:
        left, right = zip(*(piece.factors() for piece in self.pieces), strict=True)
        return jnp.concatenate(left), jnp.concatenate(right)

    def scale(self, factor: float) -> "SumCurvature":
        return SumCurvature(tuple(piece.scale(factor) for piece in self.pieces))

    def mean(self) -> "SumCurvature":
        return SumCurvature(tuple(piece.mean() for piece in self.pieces))

    def trace_with(
        self, variance: Float[Array, "latent"], product: Callable[[Array], Float[Array, "rank latent"]]
    ) -> Float[Array, ""]:
        return functools.reduce(jnp.add, [piece.trace_with(variance, product) for piece in self.pieces])


class Quadratic(eqx.Module):
    r"""The function \(c + b^\top (z - z_0) + \tfrac12 (z - z_0)^\top H (z - z_0)\).

    Args:
        anchor: \(z_0\).
        constant: \(c\), the value at the anchor.
        slope: \(b\), the gradient at the anchor.
        curvature: \(H\).
    """

    anchor: Float[Array, "*batch latent"]
    constant: Float[Array, "*batch"]
    slope: Float[Array, "*batch latent"]
    curvature: AbstractCurvature

    def value(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """Value at `z`."""
        step = z - self.anchor
        return self.constant + step @ self.slope + 0.5 * step @ self.curvature.matvec(step)

    def grad(self, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
        """Gradient at `z`; where that is the anchor itself, no product is taken."""
        return self.slope if z is self.anchor else self.slope + self.curvature.matvec(z - self.anchor)

    def scale(self, factor: float) -> "Quadratic":
        """The quadratic times a number."""
        return Quadratic(self.anchor, factor * self.constant, factor * self.slope, self.curvature.scale(factor))


def linear(
    anchor: Float[Array, "*batch latent"], constant: Float[Array, "*batch"], slope: Float[Array, "*batch latent"]
) -> Quadratic:
    """A quadratic without curvature, whose rank, zero, says so."""
    rows = jnp.zeros((*slope.shape[:-1], 0, slope.shape[-1]), slope.dtype)
    return Quadratic(anchor, constant, slope, FactoredCurvature(rows, jnp.zeros(rows.shape[:-1], slope.dtype)))


def expand_function(function: Callable[[Array], Array], anchor: Float[Array, "latent"]) -> Quadratic:
    """Second-order Taylor expansion of any function, by automatic differentiation: one product for each column."""
    slope, push = jax.linearize(jax.grad(function), anchor)
    matrix = jax.vmap(push)(jnp.eye(anchor.shape[0], dtype=anchor.dtype))
    return Quadratic(anchor, function(anchor), slope, DenseCurvature(matrix))


def hessian_products(
    function: Callable[[Array], Array], z: Float[Array, "latent"], columns: Float[Array, "latent column"]
) -> Float[Array, "latent column"]:
    """The Hessian at `z` times columns, forward over reverse; the Hessian is never formed."""
    push = jax.linearize(jax.grad(function), z)[1]
    return jax.vmap(push, in_axes=1, out_axes=1)(columns)
