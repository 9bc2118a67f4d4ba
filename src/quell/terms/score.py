# SPDX-License-Identifier: Apache-2.0
"""The score term."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import DiagonalCurvature, Quadratic
from quell.terms.base import AbstractTerm


class Score(AbstractTerm):
    r"""The score term \(g_4 = E_{q_w} \nabla_w \log q_w(Z) = 0\).

    It is the gradient of the expectation of the constant one: its score-function estimator is
    \(\nabla_w \log q_w(Z)\) and its closed form is zero.
    """

    @property
    def name(self) -> str:
        return "score"

    @property
    def is_constant(self) -> bool:
        return True

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        return jnp.ones_like(evaluation.latents(transport)[:, 0])

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return jnp.zeros_like(evaluation.latents(transport))

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        zeros = jnp.zeros_like(anchor)
        return Quadratic(anchor, jnp.ones((), anchor.dtype), zeros, DiagonalCurvature(zeros))

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return FactoredGradient()

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None
