# SPDX-License-Identifier: Apache-2.0
"""Anchors: where a function is expanded, under which q, and its expansion over all data in bounded memory."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from quell.approximations.sketch import Products
from quell.evaluation import Problem
from quell.models.quadratic import AbstractCurvature, DenseCurvature, Quadratic, hessian_products
from quell.models.row_sum import sum_over_rows
from quell.terms.expansion import average


class AbstractAnchor(eqx.Module):
    r"""A point \(z_0\) and a distribution \(q\) around it, for quadratics of any rows.

    Law: value, slope and curvature are sums over the rows, so that on average over minibatches they are those of all
    data. That holds for every point and every \(q\).
    """

    point: eqx.AbstractVar[Float[Array, "latent"]]

    @abstractmethod
    def tangent(
        self, problem: Problem, rows: PyTree, *, where: Bool[Array, "datum"] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, "latent"]]:
        """Value and slope at the point, summed over the rows that count."""

    @abstractmethod
    def products(
        self,
        problem: Problem,
        rows: PyTree,
        columns: Float[Array, "latent column"],
        *,
        where: Bool[Array, "datum"] | None = None,
    ) -> Float[Array, "latent column"]:
        """The curvature times columns, summed over the rows that count."""

    @abstractmethod
    def expand(self, problem: Problem, rows: PyTree) -> Quadratic:
        """All three, with the curvature in a form."""

    @abstractmethod
    def rows_for(self, num_columns: int, rows_at_once: int) -> int:
        """Rows that fit in memory with as many columns."""


class PredictorAnchor(AbstractAnchor):
    r"""The closest quadratic under a Gaussian \(q\), for a linear predictor: by quadrature with a few nodes.

    Args:
        point: the mean of \(q\).
        params: of \(q\).
    """

    point: Float[Array, "latent"]
    params: PyTree

    @classmethod
    def at(cls, problem: Problem, params: PyTree) -> "PredictorAnchor":
        """Around the mean of the family."""
        return cls(problem.family.mean(params), params)

    def tangent(
        self, problem: Problem, rows: PyTree, *, where: Bool[Array, "datum"] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, "latent"]]:
        quadratic = self._expand(problem, rows, where)
        return quadratic.constant, quadratic.slope

    def products(
        self,
        problem: Problem,
        rows: PyTree,
        columns: Float[Array, "latent column"],
        *,
        where: Bool[Array, "datum"] | None = None,
    ) -> Float[Array, "latent column"]:
        return self._expand(problem, rows, where).curvature.matmul(columns)

    def expand(self, problem: Problem, rows: PyTree) -> Quadratic:
        return self._expand(problem, rows, None)

    def rows_for(self, num_columns: int, rows_at_once: int) -> int:
        return rows_at_once

    def _expand(self, problem: Problem, rows: PyTree, where: Bool[Array, "datum"] | None) -> Quadratic:
        predictor = problem.predictor
        assert predictor is not None, "chosen for one"
        variance = problem.family.predictor_variance(self.params, predictor.rows(rows))
        return predictor.expand_expected(self.point, variance, rows, where=where, coarse=True)


class LatentAnchor(AbstractAnchor):
    r"""Taylor at a point, averaged over a few latents of \(q\): near the expected gradient and Hessian.

    It is the expansion at \(z_0\) of \(\bar f(z)\), the average of \(f(z + \delta_k)\) over \(k\).

    Args:
        point: the mean of \(q\).
        offsets: \(\delta_k\), latents less the mean; one of zeros is a plain Taylor expansion.
    """

    point: Float[Array, "latent"]
    offsets: Float[Array, "node latent"]

    @classmethod
    def at(cls, problem: Problem, params: PyTree, key: Key[Array, ""], num_pairs: int) -> "LatentAnchor":
        """Around the mean of the family, at mirrored pairs of latents; at the mean alone where there are no pairs."""
        family, mean = problem.family, problem.family.mean(params)
        if not num_pairs:
            return cls(mean, jnp.zeros_like(mean)[None])
        half = family.noise(key, num_pairs, mean.dtype)
        latents = family.algebra(params, jnp.concatenate([half, -half])).latents(family.sampling)
        return cls(mean, latents - mean)

    def tangent(
        self, problem: Problem, rows: PyTree, *, where: Bool[Array, "datum"] | None = None
    ) -> tuple[Float[Array, ""], Float[Array, "latent"]]:
        return jax.value_and_grad(self._of(problem, rows, where))(self.point)

    def products(
        self,
        problem: Problem,
        rows: PyTree,
        columns: Float[Array, "latent column"],
        *,
        where: Bool[Array, "datum"] | None = None,
    ) -> Float[Array, "latent column"]:
        return hessian_products(self._of(problem, rows, where), self.point, columns)

    def expand(self, problem: Problem, rows: PyTree) -> Quadratic:
        matrix = self.products(problem, rows, jnp.eye(problem.model.dim, dtype=self.point.dtype))
        return Quadratic(self.point, *self.tangent(problem, rows), DenseCurvature(0.5 * (matrix + matrix.T)))

    def rows_for(self, num_columns: int, rows_at_once: int) -> int:
        return rows_at_once // (num_columns * self.offsets.shape[0])

    def _of(self, problem: Problem, rows: PyTree, where: Bool[Array, "datum"] | None) -> Callable[[Array], Array]:
        return average(lambda z: jnp.sum(problem.model.log_likelihood(z, rows), where=where), self.offsets)


TakeCurvature = Callable[[Products], AbstractCurvature]


def expand_data(problem: Problem, anchor: AbstractAnchor, take: TakeCurvature, *, rows_at_once: int) -> Quadratic:
    """Expand the log-likelihood of all data.

    Args:
        problem: whose likelihood it is.
        anchor: where and how to expand.
        take: makes the curvature of products with the Hessian.
        rows_at_once: rows times products that are in memory at a time.
    """
    data = problem.model.data

    def tangent(rows: PyTree, counts: Bool[Array, "datum"]) -> Any:
        return anchor.tangent(problem, rows, where=counts)

    def products(columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, "latent column"]:
            return anchor.products(problem, rows, columns, where=counts)

        return sum_over_rows(of_rows, data, at_once=anchor.rows_for(columns.shape[1], rows_at_once))

    constant, slope = sum_over_rows(tangent, data, at_once=anchor.rows_for(1, rows_at_once))
    return Quadratic(anchor.point, constant, slope, take(products))


def expand_prior(problem: Problem, anchor: LatentAnchor, take: TakeCurvature) -> Quadratic:
    """Expand the log-prior; `take` makes the curvature of products with the Hessian."""
    log_prob = average(problem.model.prior.log_prob, anchor.offsets)
    constant, slope = jax.value_and_grad(log_prob)(anchor.point)
    return Quadratic(anchor.point, constant, slope, take(lambda c: hessian_products(log_prob, anchor.point, c)))
