# SPDX-License-Identifier: Apache-2.0
"""Expansions in the latent over all data, in bounded memory, with the curvature in any form."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, PyTree

from quell.approximations.anchor import AbstractAnchor, LatentAnchor
from quell.approximations.sketch import Products
from quell.evaluation import Problem
from quell.models.quadratic import AbstractCurvature, Quadratic
from quell.models.row_sum import sum_over_rows
from quell.terms.hessian_product import hessian_products

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
    log_prob = anchor.average(problem.model.prior.log_prob)
    constant, slope = jax.value_and_grad(log_prob)(anchor.point)
    return Quadratic(anchor.point, constant, slope, take(lambda c: hessian_products(log_prob, anchor.point, c)))
