# SPDX-License-Identifier: Apache-2.0
"""Structure that a model may offer: rows that see the latent through one linear function each."""

import functools
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.models.quadratic import FactoredCurvature, Quadratic

Vector = Float[Array, "datum"]
Expectations = Callable[[Vector, Vector, PyTree], tuple[Vector, Vector, Vector]]


class AbstractPredictor(eqx.Module):
    r"""Rows with \(\log p(y_i \mid t_i)\), where \(t_i = x_i^\top z\) is all that datum \(i\) sees of the latent.

    Under a Gaussian latent each \(t_i\) is a one-dimensional normal, so that expected values and derivatives are
    closed forms or one-dimensional quadratures, and the Hessian of a datum has rank one.
    """

    @property
    @abstractmethod
    def has_exact_expectations(self) -> bool:
        """Whether `expectations` are known to be exact to rounding."""

    @abstractmethod
    def rows(self, batch: PyTree) -> Float[Array, "datum latent"]:
        r"""The vectors \(x_i\) of a batch."""

    @abstractmethod
    def slopes(self, predictor: Float[Array, "datum"], batch: PyTree) -> Float[Array, "datum"]:
        r"""The derivatives of \(\log p(y_i \mid t)\) at given predictors \(t\)."""

    @abstractmethod
    def expectations(
        self, mean: Float[Array, "datum"], variance: Float[Array, "datum"], batch: PyTree, *, coarse: bool = False
    ) -> tuple[Float[Array, "datum"], Float[Array, "datum"], Float[Array, "datum"]]:
        r"""\(E f(t)\), \(E f'(t)\) and \(E f''(t)\) for each datum, with \(t \sim N(m, v)\).

        Args:
            mean: \(m\), of each predictor.
            variance: \(v\), of each predictor.
            batch: the rows that they belong to.
            coarse: take a few nodes only, the same for all data: for an approximation that need not be exact.
        """

    def quadratic_bound(
        self, mean: Float[Array, "datum"], variance: Float[Array, "datum"]
    ) -> tuple[Float[Array, "datum"], Float[Array, "datum"], Float[Array, "datum"]] | None:
        r"""A quadratic in \(t\) below \(\log p(y_i \mid t)\), as high as it can be in expectation.

        Returns:
            Its value, slope and curvature at the mean of each predictor; `None` where no bound is known.
        """
        return None

    def expand_expected(
        self,
        mean: Float[Array, "latent"],
        variance: Float[Array, "datum"],
        batch: PyTree,
        *,
        where: Bool[Array, "datum"] | None = None,
        coarse: bool = False,
    ) -> Quadratic:
        r"""The quadratic closest in mean square to the summed log-likelihood of a batch, under a Gaussian latent.

        The quadratic around \(\mu\) has the expected gradient \(\sum_i x_i E f_i'(t)\) and the expected Hessian
        \(\sum_i x_i x_i^\top E f_i''(t)\), so that its expectation has the same gradient in \(\mu\) and in the
        covariance as that of the log-likelihood.

        Args:
            mean: \(\mu\), of the latent.
            variance: of each predictor.
            batch: features and targets.
            where: the data that count; all of them by default.
            coarse: as for `expectations`.

        References: Challis & Barber (2013), "Gaussian Kullback-Leibler approximate inference", section 2.
        """
        rows = self.rows(batch)
        found = self.expectations(rows @ mean, variance, batch, coarse=coarse)
        value, first, second = (e if where is None else jnp.where(where, e, 0.0) for e in found)
        constant = jnp.sum(value - 0.5 * second * variance)
        return Quadratic(mean, constant, first @ rows, FactoredCurvature(rows, second))

    def expected_log_likelihood(
        self, mean: Float[Array, "datum"], variance: Float[Array, "datum"], batch: PyTree
    ) -> Float[Array, "datum"]:
        r"""\(E \log p(y_i \mid t)\) for \(t \sim N(m, v)\).

        Its derivatives in mean and variance are \(E f'(t)\) and \(E f''(t) / 2\), of the same expectations.
        """
        return _expected_value(self.expectations, mean, variance, batch)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _expected_value(expectations: Expectations, mean: Vector, variance: Vector, batch: PyTree) -> Vector:
    return expectations(mean, variance, batch)[0]


@_expected_value.defjvp
def _expected_value_jvp(
    expectations: Expectations, primals: tuple[Vector, Vector, PyTree], tangents: tuple[Vector, Vector, PyTree]
) -> tuple[Vector, Vector]:
    """The theorems of Bonnet and Price; the batch is data, and not differentiated."""
    value, first, second = expectations(*primals)
    return value, first * tangents[0] + 0.5 * second * tangents[1]
