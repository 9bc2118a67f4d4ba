# SPDX-License-Identifier: Apache-2.0
"""The data or the prior term, replaced by a quadratic around an anchor."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.approximations.anchor import AbstractAnchor
from quell.approximations.quadratic_term import AbstractSharedCurvatureTerm, Tangent
from quell.evaluation import Batch, Evaluation, Problem, batch_factor
from quell.families import AbstractTransport, Capability, FactoredGradient
from quell.models.quadratic import Quadratic
from quell.terms import AbstractTerm, Data, expected_grad
from quell.terms.base import Latents, Values


class AnchoredTerm(AbstractTerm):
    """A term as a quadratic: on all data the one that was kept, on a minibatch the sum of those of its data.

    Args:
        term: data or prior.
        kept: the quadratic over all data.
        anchor: of the quadratic of a minibatch.
        is_set: whether it was ever filled; until then the function is zero on every batch.
    """

    term: AbstractTerm
    kept: Quadratic
    anchor: AbstractAnchor
    is_set: Bool[Array, ""]

    @property
    def name(self) -> str:
        return f"anchored({self.term.name})"

    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        def value(z: Array, batch: Batch) -> Array:
            step, (constant, slope) = z - cast(evaluation, self.kept).anchor, self._tangent(evaluation, batch)
            return constant + step @ slope + 0.5 * step @ self._bend(evaluation, batch, step)

        return self._map(value, evaluation, transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        def grad(z: Array, batch: Batch) -> Array:
            step = z - cast(evaluation, self.kept).anchor
            return self._tangent(evaluation, batch)[1] + self._bend(evaluation, batch, step)

        return self._map(grad, evaluation, transport, full_data=full_data)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        full_data = full_data or not isinstance(self.term, Data)
        return expected_grad(evaluation, lambda batch: self._quadratic(evaluation, batch), full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return problem.family.refuses(Capability.MOMENTS)

    def _map(self, function, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Array:
        return evaluation.map(function, transport, full_data=full_data or not isinstance(self.term, Data))

    def _quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        if batch.is_full:
            return cast(evaluation, self.kept)
        found = cast(evaluation, self.anchor).expand(evaluation.problem, batch.rows)
        return self._if_set(found.scale(batch_factor(evaluation.problem, batch)))

    def _tangent(self, evaluation: Evaluation, batch: Batch) -> tuple[Float[Array, ""], Float[Array, "latent"]]:
        kept = cast(evaluation, self.kept)
        if batch.is_full:
            return kept.constant, kept.slope
        factor = batch_factor(evaluation.problem, batch)
        found = cast(evaluation, self.anchor).tangent(evaluation.problem, batch.rows)
        return self._if_set(jax.tree.map(lambda leaf: factor * leaf, found))

    def _bend(self, evaluation: Evaluation, batch: Batch, step: Float[Array, "latent"]) -> Float[Array, "latent"]:
        if batch.is_full:
            return cast(evaluation, self.kept).curvature.matvec(step)
        anchor, factor = cast(evaluation, self.anchor), batch_factor(evaluation.problem, batch)
        return self._if_set(factor * anchor.products(evaluation.problem, batch.rows, step[:, None])[:, 0])

    def _if_set(self, tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.where(self.is_set, leaf, 0.0), tree)


class SketchedTerm(AbstractSharedCurvatureTerm):
    """A term as a quadratic whose curvature is a sketch: kept over all data, and used on a minibatch too.

    Args:
        term: data or prior.
        kept: the quadratic over all data.
        anchor: of the value and the slope of a minibatch.
        is_set: whether it was ever filled; until then the function is zero on every batch.
    """

    term: AbstractTerm
    kept: Quadratic
    anchor: AbstractAnchor
    is_set: Bool[Array, ""]

    @property
    def name(self) -> str:
        return f"anchored({self.term.name})"

    @property
    def sees_data(self) -> bool:
        return isinstance(self.term, Data)

    def quadratic(self, evaluation: Evaluation) -> Quadratic:
        return cast(evaluation, self.kept)

    def tangent(self, evaluation: Evaluation, batch: Batch) -> Tangent:
        kept = self.quadratic(evaluation)
        if batch.is_full:
            return Tangent(kept.constant, kept.slope)
        factor = batch_factor(evaluation.problem, batch)
        value, slope = cast(evaluation, self.anchor).tangent(evaluation.problem, batch.rows)
        return Tangent(jnp.where(self.is_set, factor * value, 0.0), jnp.where(self.is_set, factor * slope, 0.0))


def cast(evaluation: Evaluation, tree: Any) -> Any:
    """What was kept, in the precision of the step."""
    return jax.tree.map(lambda leaf: leaf.astype(evaluation.dtype), tree)
