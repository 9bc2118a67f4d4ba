# SPDX-License-Identifier: Apache-2.0
"""Second-order Taylor expansion in the latent."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from quell.approximations.base import AbstractApproximation
from quell.approximations.quadratic_term import AbstractQuadraticTerm
from quell.core.checks import check_finite
from quell.evaluation import Batch, Evaluation, Problem
from quell.families import Capability
from quell.models.quadratic import Quadratic
from quell.terms import AbstractTerm


def _as_anchor(anchor: ArrayLike | None) -> Array | None:
    return None if anchor is None else jnp.asarray(anchor, dtype=jnp.result_type(float))


class TaylorInLatent(AbstractApproximation):
    r"""Replace \(f(z)\) by its second-order Taylor expansion around the mean of \(q_w\), or around a fixed point.

    A quadratic has a closed form under any family with two moments, so this corrects for sampling the
    latent.

    Args:
        anchor: the point to expand around, a flat latent such as the mode; `None` follows the mean of \(q_w\).
            Two variates with fixed anchors need a `label` each.

    Bias: none in a variate.
    Cost: gradient and Hessian of \(f\) at the anchor, on each replicate's minibatch; for a linear predictor
    the Hessian has the rank of the minibatch and is never formed.

    Example:
        >>> import quell
        >>> quell.TaylorInLatent().name, quell.TaylorInLatent(anchor=[0.5, -1.0]).name
        ('taylor-z', 'taylor-z[anchor]')

    References: Miller et al. (2017); Geffner & Domke (2018), appendix.
    """

    anchor: Float[Array, "latent"] | None = eqx.field(default=None, converter=_as_anchor)

    def __check_init__(self) -> None:
        """Refuse an anchor that is not a flat, finite vector."""
        if self.anchor is None:
            return
        if self.anchor.ndim != 1:
            raise ValueError(f"`anchor` must be a flat vector, got shape {self.anchor.shape}.")
        check_finite("anchor", self.anchor)

    @property
    def name(self) -> str:
        return _name(self.anchor)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if self.anchor is not None and self.anchor.shape[0] != problem.model.dim:
            return f"the anchor has {self.anchor.shape[0]} coordinates and the latent has {problem.model.dim}"
        # Without moments there is no mean to follow, and no closed form of the expansion.
        return problem.family.refuses(Capability.MOMENTS) or term.refuses_expansion(problem)

    def init(self, problem: Problem) -> PyTree:
        return self.anchor

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        return ExpandedInLatent(term, state)


class ExpandedInLatent(AbstractQuadraticTerm):
    """A term whose function is expanded around the mean of the current parameters, or around a fixed anchor."""

    term: AbstractTerm
    anchor: PyTree = None

    @property
    def name(self) -> str:
        return f"{_name(self.anchor)}({self.term.name})"

    def quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        mean = evaluation.problem.family.mean(evaluation.params)
        anchor = mean if self.anchor is None else self.anchor.astype(mean.dtype)
        return self.term.expand(evaluation, anchor, batch)


def _name(anchor: PyTree) -> str:
    return "taylor-z" if anchor is None else "taylor-z[anchor]"
