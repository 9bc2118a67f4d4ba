# SPDX-License-Identifier: Apache-2.0
"""Quadratics that learn from the gradients seen."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.approximations.base import AbstractApproximation
from quell.approximations.quadratic_term import AbstractSharedCurvatureTerm, Tangent
from quell.core.checks import check_name, check_positive
from quell.core.trees import all_finite, select
from quell.evaluation import Batch, Evaluation, Problem
from quell.families import Capability
from quell.models.quadratic import AbstractCurvature, DenseCurvature, DiagonalCurvature, Quadratic
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
        rate: of learning: with `rate / (dim + 1)` per replicate, the average goes back over `(dim + 1) / rate`
            gradients. A small one averages better over minibatches, a large one follows a moving \(q_w\).
        curvature: `"dense"`, `"diagonal"`, or `"auto"`, which takes the first up to 100 coordinates.

    Bias: none in a variate.
    Cost: no evaluation of \(f\) beside those of the base gradient; `dim` squared operations per replicate, or
    `dim` for a diagonal.

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
        check_name("`curvature`", self.curvature, ("auto", "dense", "diagonal"))

    @property
    def name(self) -> str:
        return "fitted"

    @property
    def by_parts(self) -> bool:
        return False

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if term.is_constant:
            return f"the function of the {term.name} term is a constant"
        return problem.family.refuses(Capability.MOMENTS)

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
        return select(all_finite(new), new, state)

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
        return jax.tree.map(lambda leaf: leaf.astype(evaluation.dtype), self.kept)

    def tangent(self, evaluation: Evaluation, batch: Batch) -> Tangent:
        kept = self.quadratic(evaluation)
        return Tangent(kept.constant, kept.slope)


class Residuals(NamedTuple):
    r"""What a quadratic does not explain of the gradients at a few latents.

    Args:
        rest: gradient less the quadratic's gradient.
        step: latent less mean, \(z - \mu\).
        relative: the same over the variance of each coordinate. Whitening by all of \(\Sigma^{-1}\) would learn faster
            where coordinates depend on each other, and blow up where a triangular scale is nearly singular, as it
            is on the way of many fits.
    """

    rest: Float[Array, "sample latent"]
    step: Float[Array, "sample latent"]
    relative: Float[Array, "sample latent"]


def learn_dense(quadratic: Quadratic, seen: Residuals, rate: float) -> Quadratic:
    r"""Move slope and matrix towards the residuals.

    With \(x\) the step in standard deviations, and a one for the slope, the gain is \(\eta / (1 + \eta \|x\|^2)\), the
    step's norm being that of all replicates' products: large rates make the residual zero, and none overshoots.
    """
    gram = 1.0 + seen.step @ seen.relative.T
    gain = rate / (1.0 + rate * jnp.linalg.norm(gram) / gram.shape[0])
    missing = seen.rest.T @ seen.relative / gram.shape[0]
    matrix = quadratic.curvature.matmul(jnp.eye(missing.shape[0], dtype=missing.dtype))
    return _moved(
        quadratic, gain * jnp.mean(seen.rest, axis=0), DenseCurvature(matrix + 0.5 * gain * (missing + missing.T))
    )


def learn_diagonal(quadratic: Quadratic, seen: Residuals, rate: float) -> Quadratic:
    """As `learn_dense`, each coordinate by itself."""
    size = 1.0 + jnp.mean(seen.step * seen.relative, axis=0)
    gain = rate / (1.0 + rate * size)
    values = quadratic.curvature.diagonal() + gain * jnp.mean(seen.rest * seen.relative, axis=0)
    return _moved(quadratic, gain * jnp.mean(seen.rest, axis=0), DiagonalCurvature(values))


def _moved(quadratic: Quadratic, more_slope: Float[Array, "latent"], curvature: AbstractCurvature) -> Quadratic:
    return Quadratic(quadratic.anchor, quadratic.constant, quadratic.slope + more_slope, curvature)


def _residuals(term: AbstractTerm, evaluation: Evaluation, quadratic: Quadratic) -> Residuals:
    """At the latents of the draw, around the mean; a replicate whose gradient is not finite teaches nothing."""
    transport = term.sampling(evaluation.problem)
    step = evaluation.latents(transport) - quadratic.anchor
    grads = term.grads(evaluation, transport, full_data=False)
    rest = grads - quadratic.slope - quadratic.curvature.matmul(step.T).T
    usable = jnp.all(jnp.isfinite(rest), axis=1, keepdims=True)
    variance = evaluation.problem.family.variance(evaluation.params)
    return Residuals(jnp.where(usable, rest, 0.0), step, step / jnp.where(variance > 0, variance, 1.0))
