# SPDX-License-Identifier: Apache-2.0
"""Expectations of a function of batches under the family, and sums over all data in bounded memory."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell.evaluation import Batch, Evaluation, batch_factor
from quell.families import AbstractTransport, FactoredGradient
from quell.models import AbstractPredictor
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.models.row_sum import ROWS_AT_ONCE, rows_for, sum_over_rows


class Expectation(NamedTuple):
    r"""\(E_{q_w} f(Z)\) and its gradient in \(w\)."""

    value: Float[Array, ""]
    grad: FactoredGradient


def sum_over_data(
    evaluation: Evaluation,
    derive: Callable[[Callable[[Array], Array]], Callable[[Array], Array]],
    transport: AbstractTransport,
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


def expected_on_batches(evaluation: Evaluation, predictor: AbstractPredictor) -> FactoredGradient:
    r"""\(\nabla_w E_{q_w}\) of the log-likelihood of minibatches whose rows see linear predictors.

    Each predictor is a one-dimensional normal under a Gaussian family, and the gradient is that of a quadratic.
    """
    problem, params = evaluation.problem, evaluation.params
    mean = problem.family.mean(params)

    def of_batch(batch: Batch) -> Quadratic:
        variance = problem.family.predictor_variance(params, predictor.rows(batch.rows))
        return predictor.expand_expected(mean, variance, batch.rows).scale(batch_factor(problem, batch))

    return expected_grad(evaluation, of_batch, full_data=False)


def expected_by_structure(evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
    r"""\(\nabla_w E_{q_w}\) of the log-likelihood of minibatches, or of all data, by `problem.rows`."""
    problem, params, index = evaluation.problem, evaluation.params, evaluation.draw.index
    rows, family = problem.rows, problem.family
    assert rows is not None, "refused before"
    if full_data or index is None:
        return FactoredGradient.from_exact(jax.grad(lambda params: rows(family.gaussian(params)))(params))

    def of_batch(index: Int[Array, "datum"]) -> PyTree:
        factor = problem.model.num_data / index.size
        return jax.grad(lambda params: factor * rows(family.gaussian(params), index))(params)

    if index.ndim == 1:
        return FactoredGradient.from_exact(of_batch(index))
    return FactoredGradient(dense=jax.vmap(of_batch)(index))


def expected_on_all(evaluation: Evaluation, predictor: AbstractPredictor) -> Expectation:
    """The same on all data, summed a few rows at a time, with the expected log-likelihood itself."""
    problem, params = evaluation.problem, evaluation.params
    family, mean = problem.family, problem.family.mean(params)

    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Expectation:
        variance = family.predictor_variance(params, predictor.rows(rows))
        quadratic = predictor.expand_expected(mean, variance, rows, where=counts)
        algebra = family.algebra(params, evaluation.draw.noise)  # one per chunk, since it keeps what is traced
        # The expectation of the quadratic is that of the log-likelihood: around the mean, half a trace is added.
        assert isinstance(quadratic.curvature, FactoredCurvature)
        value = quadratic.constant + 0.5 * jnp.sum(quadratic.curvature.weight * variance)
        return Expectation(value, algebra.expected_quadratic_grad(quadratic, per_sample=False))

    return sum_over_rows(of_rows, problem.model.data, at_once=rows_for(problem.model.dim))
