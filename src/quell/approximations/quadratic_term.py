# SPDX-License-Identifier: Apache-2.0
"""Approximated terms whose function is a quadratic in the latent, with a curvature per batch or one for all."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families import AbstractTransport, Capability, FactoredGradient
from quell.models.quadratic import Quadratic, linear
from quell.terms import AbstractTerm, expected_grad
from quell.terms.base import Latents, Values


class AbstractQuadraticTerm(AbstractTerm):
    """A term whose function is the quadratic that a batch and the current parameters define.

    Its closed form goes through the family's first two moments.
    """

    @abstractmethod
    def quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        """The function on one batch. Law: it depends on the parameters, never on the noise of the draw."""

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        return self._map(Quadratic.value, evaluation, transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        return self._map(Quadratic.grad, evaluation, transport, full_data=full_data)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        return expected_grad(evaluation, lambda batch: self.quadratic(evaluation, batch), full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return problem.family.refuses(Capability.MOMENTS)

    def _map(self, method, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Array:
        quadratics = evaluation.map_batches(lambda batch: self.quadratic(evaluation, batch), full_data=full_data)
        axis = 0 if evaluation.has_batch_axis(full_data=full_data) else None
        return jax.vmap(method, in_axes=(axis, 0))(quadratics, evaluation.latents(transport))


class Tangent(eqx.Module):
    """Value and gradient at the anchor, one per replicate or the same for all of them."""

    constant: Float[Array, "*sample"]
    slope: Float[Array, "*sample latent"]


class AbstractSharedCurvatureTerm(AbstractTerm):
    """A term whose function is a quadratic with one curvature for all batches, which is never copied for each.

    Its closed form goes through the family's first two moments.
    """

    @property
    @abstractmethod
    def sees_data(self) -> bool:
        """Whether the tangent depends on the batch."""

    @abstractmethod
    def quadratic(self, evaluation: Evaluation) -> Quadratic:
        """The function on all data. Law: it does not depend on the noise of the draw."""

    @abstractmethod
    def tangent(self, evaluation: Evaluation, batch: Batch) -> Tangent:
        """Value and gradient at the anchor on one batch. Law: on average over batches, those of all data."""

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        tangent, steps = self._tangents(evaluation, full_data=full_data), self._steps(evaluation, transport)
        return tangent.constant + jnp.sum(steps * (tangent.slope + 0.5 * self._bend(evaluation, steps)), axis=1)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        slope = self._tangents(evaluation, full_data=full_data).slope
        return slope + self._bend(evaluation, self._steps(evaluation, transport))

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        tangent, particles = self._tangents(evaluation, full_data=full_data), evaluation.algebra
        if tangent.slope.ndim == 1:
            return particles.expected_quadratic_grad(self._with(evaluation, tangent), per_sample=False)
        anchors = jnp.broadcast_to(self.quadratic(evaluation).anchor, tangent.slope.shape)
        tilt = particles.expected_quadratic_grad(linear(anchors, tangent.constant, tangent.slope), per_sample=True)
        level = Tangent(jnp.zeros_like(tangent.constant[0]), jnp.zeros_like(tangent.slope[0]))
        return tilt + particles.expected_quadratic_grad(self._with(evaluation, level), per_sample=False)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return problem.family.refuses(Capability.MOMENTS)

    def _tangents(self, evaluation: Evaluation, *, full_data: bool) -> Tangent:
        full_data = full_data or not self.sees_data
        return evaluation.map_batches(lambda batch: self.tangent(evaluation, batch), full_data=full_data)

    def _with(self, evaluation: Evaluation, tangent: Tangent) -> Quadratic:
        kept = self.quadratic(evaluation)
        return Quadratic(kept.anchor, tangent.constant, tangent.slope, kept.curvature)

    def _steps(self, evaluation: Evaluation, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        return evaluation.latents(transport) - self.quadratic(evaluation).anchor

    def _bend(self, evaluation: Evaluation, steps: Float[Array, "sample latent"]) -> Float[Array, "sample latent"]:
        return self.quadratic(evaluation).curvature.matmul(steps.T).T
