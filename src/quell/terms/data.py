# SPDX-License-Identifier: Apache-2.0
"""The data term."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models import LinearPredictor
from quell.models.quadratic import Quadratic
from quell.terms.base import AbstractTerm
from quell.terms.closed_form import batch_factor, expected_grad, expected_linear_grad, sum_over_data


class Data(AbstractTerm):
    r"""The data term \(g_1 = \nabla_w E_{q_w} \log p(x \mid Z)\), where a minibatch stands for all data."""

    @property
    def name(self) -> str:
        return "data"

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        if transport in evaluation.known_values:
            return evaluation.known_values[transport]
        if evaluation.reads_all(full_data=full_data):
            return sum_over_data(evaluation, lambda likelihood: likelihood, transport)
        return evaluation.map(_log_likelihood(evaluation.problem), transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        if evaluation.reads_all(full_data=full_data):
            return sum_over_data(evaluation, jax.grad, transport)
        return evaluation.map(jax.grad(_log_likelihood(evaluation.problem)), transport, full_data=full_data)

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        factor = batch_factor(evaluation.problem, batch)
        return evaluation.problem.model.expand(anchor, batch.rows).scale(factor)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        problem = evaluation.problem
        by_blocks = evaluation.reads_all(full_data=full_data) and problem.family.is_gaussian
        if isinstance(problem.model, LinearPredictor) and (by_blocks or not problem.model.likelihood_is_quadratic):
            return expected_linear_grad(evaluation, problem.model, full_data=full_data)
        anchor = problem.family.mean(evaluation.params)
        return expected_grad(evaluation, lambda batch: self.expand(evaluation, anchor, batch), full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        if problem.model.likelihood_is_quadratic:
            return None
        if not isinstance(problem.model, LinearPredictor):
            return "the log-likelihood is neither a quadratic in the latent nor one of a linear predictor"
        if not problem.family.is_gaussian:
            return f"{type(problem.family).__name__} is not Gaussian, so that no predictor is a normal"
        return None


def _log_likelihood(problem: Problem) -> Callable[[Array, Batch], Array]:
    def scaled(z: Array, batch: Batch) -> Array:
        return batch_factor(problem, batch) * jnp.sum(problem.model.log_likelihood(z, batch.rows))

    return scaled
