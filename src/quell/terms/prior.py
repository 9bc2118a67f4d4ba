# SPDX-License-Identifier: Apache-2.0
"""The prior term."""

import jax
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import Quadratic, expand_function
from quell.terms.base import AbstractTerm


class Prior(AbstractTerm):
    r"""The prior term \(g_2 = \nabla_w E_{q_w} \log p(Z)\)."""

    @property
    def name(self) -> str:
        return "prior"

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        return jax.vmap(evaluation.problem.model.prior.log_prob)(evaluation.latents(transport))

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return jax.vmap(jax.grad(evaluation.problem.model.prior.log_prob))(evaluation.latents(transport))

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        prior = evaluation.problem.model.prior
        return prior.quadratic(anchor) or expand_function(prior.log_prob, anchor)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        problem = evaluation.problem
        quadratic = problem.model.prior.quadratic(problem.family.mean(evaluation.params))
        assert quadratic is not None, "refused before"
        return evaluation.algebra.expected_quadratic_grad(quadratic, per_sample=False)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        if problem.model.prior.quadratic(jax.numpy.zeros(problem.model.dim)) is not None:
            return None
        return "the log-prior is not known to be a quadratic (give the model a `NormalPrior` if it is one)"
