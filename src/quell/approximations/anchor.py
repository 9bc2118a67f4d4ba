# SPDX-License-Identifier: Apache-2.0
"""Where a log-likelihood is expanded, and what is kept of the q under which the expansion is averaged."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree

from quell.evaluation import Problem
from quell.models import LinearPredictor
from quell.models.quadratic import DenseCurvature, Quadratic
from quell.terms.hessian_product import hessian_products


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
        assert isinstance(problem.model, LinearPredictor), "chosen for one"
        variance = problem.family.predictor_variance(self.params, rows.features)
        return problem.model.expand_expected(self.point, variance, rows, where=where, coarse=True)


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

    def average(self, function: Callable[[Array], Array]) -> Callable[[Array], Array]:
        r"""\(\bar f\) of any function of the latent."""
        return lambda z: jnp.mean(jax.vmap(function)(z + self.offsets))

    def _of(self, problem: Problem, rows: PyTree, where: Bool[Array, "datum"] | None) -> Callable[[Array], Array]:
        return self.average(lambda z: jnp.sum(problem.model.log_likelihood(z, rows), where=where))
