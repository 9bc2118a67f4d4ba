# SPDX-License-Identifier: Apache-2.0
"""Expansions in the latent over all data, in bounded memory, with the curvature in any form."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.approximations.row_sum import sum_over_rows
from quell.approximations.sketch import Products
from quell.models import AbstractModel
from quell.quadratic import AbstractCurvature, Quadratic

TakeCurvature = Callable[[Products], AbstractCurvature]


def expand_data(
    model: AbstractModel, anchor: Float[Array, "latent"], take: TakeCurvature, *, rows_at_once: int
) -> Quadratic:
    """Expand the log-likelihood of all data.

    Args:
        model: whose likelihood it is.
        anchor: the point to expand around.
        take: makes the curvature of products with the Hessian.
        rows_at_once: rows times products that are in memory at a time.
    """

    def of(rows: PyTree, counts: Bool[Array, "datum"]) -> Callable[[Array], Array]:
        return lambda z: jnp.sum(model.log_likelihood(z, rows), where=counts)

    def value_and_grad(rows: PyTree, counts: Bool[Array, "datum"]) -> Any:
        return jax.value_and_grad(of(rows, counts))(anchor)

    def products(columns: Float[Array, "latent column"]) -> Float[Array, "latent column"]:
        def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, "latent column"]:
            return hessian_products(of(rows, counts), anchor, columns)

        return sum_over_rows(of_rows, model.data, at_once=rows_at_once // columns.shape[1])

    constant, slope = sum_over_rows(value_and_grad, model.data, at_once=rows_at_once)
    return Quadratic(anchor, constant, slope, take(products))


def expand_prior(model: AbstractModel, anchor: Float[Array, "latent"], take: TakeCurvature) -> Quadratic:
    """Expand the log-prior; `take` makes the curvature of products with the Hessian."""
    constant, slope = jax.value_and_grad(model.prior.log_prob)(anchor)
    return Quadratic(anchor, constant, slope, take(lambda c: hessian_products(model.prior.log_prob, anchor, c)))


def hessian_products(
    function: Callable[[Array], Array], z: Float[Array, "latent"], columns: Float[Array, "latent column"]
) -> Float[Array, "latent column"]:
    """The Hessian at `z` times columns, forward over reverse."""
    push = jax.linearize(jax.grad(function), z)[1]
    return jax.vmap(push, in_axes=1, out_axes=1)(columns)
