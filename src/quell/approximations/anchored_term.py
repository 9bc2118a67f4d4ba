# SPDX-License-Identifier: Apache-2.0
"""The data or the prior term, replaced by a quadratic around an anchor."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from quell.approximations.shared_curvature_term import AbstractSharedCurvatureTerm, Tangent
from quell.evaluation import Batch, Evaluation
from quell.quadratic import Quadratic
from quell.terms import AbstractTerm, Data, batch_factor


class AnchoredTerm(AbstractSharedCurvatureTerm):
    """A term as a quadratic: on all data the one that was kept, on a minibatch with its own value and slope.

    Args:
        term: data or prior.
        kept: the quadratic over all data.
        is_set: whether it was ever filled; until then the function is zero on every batch.
    """

    term: AbstractTerm
    kept: Quadratic
    is_set: Bool[Array, ""]

    @property
    def name(self) -> str:
        return f"anchored({self.term.name})"

    @property
    def sees_data(self) -> bool:
        return isinstance(self.term, Data)

    def quadratic(self, evaluation: Evaluation) -> Quadratic:
        dtype = evaluation.problem.family.mean(evaluation.params).dtype
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self.kept)

    def tangent(self, evaluation: Evaluation, batch: Batch) -> Tangent:
        kept = self.quadratic(evaluation)
        if batch.is_full:
            return Tangent(kept.constant, kept.slope)
        model, factor = evaluation.problem.model, batch_factor(evaluation.problem, batch)
        value, slope = jax.value_and_grad(lambda z: factor * jnp.sum(model.log_likelihood(z, batch.rows)))(kept.anchor)
        return Tangent(jnp.where(self.is_set, value, 0.0), jnp.where(self.is_set, slope, 0.0))
