# SPDX-License-Identifier: Apache-2.0
"""Sums over all data, and closed forms of quadratics and of linear predictors through the family's moments."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models import LinearPredictor
from quell.models.quadratic import Quadratic
from quell.models.row_sum import ROWS_AT_ONCE, rows_for, sum_over_rows


def batch_factor(problem: Problem, batch: Batch) -> float:
    """How many data each datum of a batch stands for."""
    return problem.model.num_data / jax.tree.leaves(batch.rows)[0].shape[0]


def sum_over_data(
    evaluation: Evaluation, derive: Callable[[Callable[[Array], Array]], Callable[[Array], Array]], transport: str
) -> Array:
    """The log-likelihood of all data, or what is derived from it, at each latent; a few rows at a time."""
    model, latents = evaluation.problem.model, evaluation.latents(transport)

    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Array:
        return jax.vmap(derive(lambda z: jnp.sum(model.log_likelihood(z, rows), where=counts)))(latents)

    return sum_over_rows(of_rows, model.data, at_once=ROWS_AT_ONCE)


def expected_grad(
    evaluation: Evaluation, quadratic: Callable[[Batch], Quadratic], *, full_data: bool
) -> FactoredGradient:
    r"""\(\nabla_w E_{q_w}\) of the quadratic that a batch defines; per replicate where batches differ."""
    per_sample = evaluation.has_batch_axis(full_data=full_data)
    quadratics = evaluation.map_batches(quadratic, full_data=full_data)
    return evaluation.algebra.expected_quadratic_grad(quadratics, per_sample=per_sample)


def expected_linear_grad(evaluation: Evaluation, model: LinearPredictor, *, full_data: bool) -> FactoredGradient:
    r"""\(\nabla_w E_{q_w}\) of the log-likelihood of a linear predictor under a Gaussian family.

    Each predictor is a one-dimensional normal, so that expected derivatives are quadratures, and the gradient is that
    of a quadratic. Over all data it is summed a few rows at a time; where these are the data of the step, the
    log-likelihoods of its latents are summed with it, so that rows are read once.
    """
    problem, params = evaluation.problem, evaluation.params
    mean, transport = problem.family.mean(params), problem.family.sampling
    sees_all = evaluation.draw.index is None
    latents = evaluation.latents(transport) if sees_all else ()

    def of_batch(batch: Batch) -> Quadratic:
        variance = problem.family.predictor_variance(params, batch.rows.features)
        return model.expand_expected(mean, variance, batch.rows).scale(batch_factor(problem, batch))

    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> tuple[FactoredGradient, PyTree]:
        variance = problem.family.predictor_variance(params, rows.features)
        quadratic = model.expand_expected(mean, variance, rows, where=counts)
        particles = problem.family.algebra(params, evaluation.draw.noise)  # of their own: they keep what is traced
        value = jax.vmap(lambda z: jnp.sum(model.log_likelihood(z, rows), where=counts))
        return particles.expected_quadratic_grad(quadratic, per_sample=False), jax.tree.map(value, latents)

    if full_data or sees_all:
        parts, values = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
        if sees_all:
            evaluation.known_values[transport] = values
        return parts
    return expected_grad(evaluation, of_batch, full_data=False)
