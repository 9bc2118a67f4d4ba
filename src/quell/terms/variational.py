# SPDX-License-Identifier: Apache-2.0
"""The variational term."""

import functools

import jax
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import Quadratic, expand_function
from quell.terms.base import AbstractTerm


class Variational(AbstractTerm):
    r"""The variational term \(g_3 = \nabla_w E_{q_w} \log q_v(Z)\) at \(v = w\); the ELBO subtracts it.

    Its closed form is minus the gradient of the entropy, because the score term, which is the rest of
    that gradient, has expectation zero.
    """

    @property
    def name(self) -> str:
        return "variational"

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        log_prob = functools.partial(evaluation.problem.family.log_prob, evaluation.params)
        return jax.vmap(log_prob)(evaluation.latents(transport))

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return evaluation.algebra.log_prob_grads(transport)

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        log_prob = functools.partial(evaluation.problem.family.log_prob, evaluation.params)
        return expand_function(log_prob, anchor)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return -evaluation.algebra.entropy_grad()

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None
