# SPDX-License-Identifier: Apache-2.0
"""Approximated terms whose function is a quadratic in the latent."""

from abc import abstractmethod

import jax
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import Quadratic
from quell.terms import AbstractTerm, expected_grad


class AbstractQuadraticTerm(AbstractTerm):
    """A term whose function is the quadratic that a batch and the current parameters define.

    Its closed form goes through the family's first two moments.
    """

    @abstractmethod
    def quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        """The function on one batch. Law: it depends on the parameters, never on the noise of the draw."""

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        return self._map(Quadratic.value, evaluation, transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return self._map(Quadratic.grad, evaluation, transport, full_data=full_data)

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        quadratic = self.quadratic(evaluation, batch)
        return Quadratic(anchor, quadratic.value(anchor), quadratic.grad(anchor), quadratic.curvature)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return expected_grad(evaluation, lambda batch: self.quadratic(evaluation, batch), full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None

    def _map(self, method, evaluation: Evaluation, transport: str, *, full_data: bool) -> Array:
        quadratics = evaluation.map_batches(lambda batch: self.quadratic(evaluation, batch), full_data=full_data)
        axis = 0 if evaluation.has_batch_axis(full_data=full_data) else None
        return jax.vmap(method, in_axes=(axis, 0))(quadratics, evaluation.latents(transport))
