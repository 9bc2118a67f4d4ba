# SPDX-License-Identifier: Apache-2.0
"""Second-order Taylor expansion in the latent."""

import jax
from jaxtyping import Array, Float, PyTree

from quell.approximations.base import AbstractApproximation
from quell.evaluation import Batch, Evaluation
from quell.parts import Parts
from quell.problem import Problem
from quell.quadratic import Quadratic
from quell.terms import AbstractTerm, expected_grad


class TaylorInLatent(AbstractApproximation):
    r"""Replace \(f(z)\) by its second-order Taylor expansion around the mean of \(q_w\).

    A quadratic has a closed form under any family with two moments, so this corrects for sampling the
    latent.

    Bias: none in a variate.
    Cost: gradient and Hessian of \(f\) at the mean, on each replicate's minibatch; for a linear predictor
    the Hessian has the rank of the minibatch and is never formed.

    References: Miller et al. (2017); Geffner & Domke (2018), appendix.
    """

    @property
    def name(self) -> str:
        return "taylor-z"

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return None

    def init(self, problem: Problem) -> PyTree:
        return None

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        return ExpandedInLatent(term)


class ExpandedInLatent(AbstractTerm):
    """A term whose function is expanded around the mean of the current parameters."""

    term: AbstractTerm

    @property
    def name(self) -> str:
        return f"taylor-z({self.term.name})"

    def values(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample"]:
        return self._map(Quadratic.value, evaluation, transport, full_data=full_data)

    def grads(self, evaluation: Evaluation, transport: str, *, full_data: bool) -> Float[Array, "sample latent"]:
        return self._map(Quadratic.grad, evaluation, transport, full_data=full_data)

    def expand(self, evaluation: Evaluation, anchor: Float[Array, "latent"], batch: Batch) -> Quadratic:
        quadratic = self._quadratic(evaluation, batch)
        return Quadratic(anchor, quadratic.value(anchor), quadratic.grad(anchor), quadratic.curvature)

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> Parts:
        return expected_grad(evaluation, lambda batch: self._quadratic(evaluation, batch), full_data=full_data)

    def refuses_closed_form(self, problem: Problem) -> str | None:
        return None

    def _quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        anchor = evaluation.problem.family.mean(evaluation.params)
        return self.term.expand(evaluation, anchor, batch)

    def _map(self, method, evaluation: Evaluation, transport: str, *, full_data: bool) -> Array:
        quadratics = evaluation.map_batches(lambda batch: self._quadratic(evaluation, batch), full_data=full_data)
        axis = 0 if evaluation.has_batch_axis(full_data=full_data) else None
        return jax.vmap(method, in_axes=(axis, 0))(quadratics, evaluation.latents(transport))
