# SPDX-License-Identifier: Apache-2.0
"""Quadratics that learn from the gradients seen."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from quell.approximations.base import AbstractApproximation
from quell.approximations.residual_step import Residuals, learn_dense, learn_diagonal
from quell.approximations.shared_curvature_term import AbstractSharedCurvatureTerm, Tangent
from quell.core.checks import check_name, check_positive
from quell.evaluation import Batch, Evaluation, Problem
from quell.models.quadratic import DenseCurvature, DiagonalCurvature, Quadratic
from quell.terms import AbstractTerm

LARGEST_DENSE = 100
"""Up to this many coordinates `"auto"` learns a whole matrix."""


class FittedQuadratic(AbstractApproximation):
    r"""Replace \(f(z)\) by \(b^\top (z - \mu) + \tfrac12 (z - \mu)^\top B (z - \mu)\), fitted to gradients of \(f\).

    After each step \(b\) and \(B\) take one step of least squares towards \(\nabla f\) at the latents of the draw, and
    are used from the next step on. The best fit under \(q_w\) has the expected gradient and the expected Hessian of
    \(f\), where a Taylor expansion has those at one point; so it suits a wide \(q_w\) and a strongly bent \(f\). The
    steps are taken in units of \(q_w\)'s standard deviations, and are implicit, so that no scale of the problem enters
    and nothing overshoots.

    A minibatch's gradients are noisy ones of all data, so it corrects for the noise of the latent only. Of a sum of
    terms it learns the sum.

    Args:
        rate: of learning: with `rate / (dim + 1)` a replicate, the average goes back over `(dim + 1) / rate` gradients.
            A small one averages better over minibatches, a large one follows a moving \(q_w\).
        curvature: `"dense"`, `"diagonal"`, or `"auto"`, which takes the first up to 100 coordinates.

    Bias: none in a variate.
    Cost: no evaluation of \(f\) beside those of the base gradient; `dim` squared operations a replicate, or `dim` for a
    diagonal.

    Example:
        >>> import quell
        >>> learned = quell.FittedQuadratic()
        >>> quell.ControlVariate(quell.Prior(), quell.Reparameterization(), quell.ClosedForm(), learned)
        ControlVariate(fitted(prior): rp - cf)

    References: Geffner & Domke (2020), "Approximation based variance reduction for reparameterization gradients",
    section 3; the step is that of normalised least mean squares.
    """

    rate: float = 0.5
    curvature: Literal["auto", "dense", "diagonal"] = "auto"

    def __check_init__(self) -> None:
        """Refuse a rate that is not positive, and a form that is not known."""
        check_positive("rate", self.rate)
        check_name("curvature", self.curvature, ("auto", "dense", "diagonal"))

    @property
    def name(self) -> str:
        return "fitted"

    @property
    def by_parts(self) -> bool:
        return False

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return f"the function of the {term.name} term is a constant" if term.is_constant else None

    def init(self, problem: Problem) -> Quadratic:
        dim = problem.model.dim
        is_dense = self._is_dense(dim)
        curvature = DenseCurvature(jnp.zeros((dim, dim))) if is_dense else DiagonalCurvature(jnp.zeros(dim))
        return Quadratic(jnp.zeros(dim), jnp.zeros(()), jnp.zeros(dim), curvature)

    def apply(self, term: AbstractTerm, state: Quadratic) -> AbstractTerm:
        return FittedTerm(term, state)

    def update(self, term: AbstractTerm, evaluation: Evaluation, state: Quadratic, grad: PyTree) -> Quadratic:
        problem, params = evaluation.problem, evaluation.params
        mean, dim = problem.family.mean(params), problem.model.dim
        kept = jax.tree.map(lambda leaf: leaf.astype(mean.dtype), state)
        here = Quadratic(mean, jnp.zeros((), mean.dtype), kept.grad(mean), kept.curvature)
        seen = _residuals(term, evaluation, here)
        learn, size = (learn_dense, dim) if self._is_dense(dim) else (learn_diagonal, DIAGONAL_SIZE)
        new = learn(here, seen, min(1.0, self.rate * seen.rest.shape[0] / (size + 1)))
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new)]))
        return jax.tree.map(lambda n, old: jnp.where(finite, n.astype(old.dtype), old), new, state)

    def _is_dense(self, dim: int) -> bool:
        return dim <= LARGEST_DENSE if self.curvature == "auto" else self.curvature == "dense"


DIAGONAL_SIZE = 20
"""A diagonal is learned at the rate of a matrix of this size: what it leaves out looks like noise, and is averaged."""


class FittedTerm(AbstractSharedCurvatureTerm):
    """A term replaced by a quadratic that was fitted to its gradients.

    Args:
        term: what is replaced.
        kept: the quadratic.
    """

    term: AbstractTerm
    kept: Quadratic

    @property
    def name(self) -> str:
        return f"fitted({self.term.name})"

    @property
    def sees_data(self) -> bool:
        return False

    def quadratic(self, evaluation: Evaluation) -> Quadratic:
        dtype = evaluation.problem.family.mean(evaluation.params).dtype
        return jax.tree.map(lambda leaf: leaf.astype(dtype), self.kept)

    def tangent(self, evaluation: Evaluation, batch: Batch) -> Tangent:
        kept = self.quadratic(evaluation)
        return Tangent(kept.constant, kept.slope)


def _residuals(term: AbstractTerm, evaluation: Evaluation, quadratic: Quadratic) -> Residuals:
    """At the latents of the draw, around the mean; a replicate whose gradient is not finite teaches nothing."""
    transport = term.sampling(evaluation.problem)
    step = evaluation.latents(transport) - quadratic.anchor
    grads = term.grads(evaluation, transport, full_data=False)
    rest = grads - quadratic.slope - quadratic.curvature.matmul(step.T).T
    usable = jnp.all(jnp.isfinite(rest), axis=1, keepdims=True)
    variance = evaluation.problem.family.variance(evaluation.params)
    return Residuals(jnp.where(usable, rest, 0.0), step, step / jnp.where(variance > 0, variance, 1.0))
