# SPDX-License-Identifier: Apache-2.0
"""What a term of the ELBO's gradient offers to estimators."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import Array, Float

from quell.evaluation import Batch, Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.models.quadratic import Quadratic

Values = Float[Array, "sample"]
Latents = Float[Array, "sample latent"]


class AbstractTerm(eqx.Module):
    r"""A gradient \(\nabla_w E_{q_w} f(Z)\), where \(f\) itself does not depend on \(w\).

    An approximated term is again a term; estimators never know. Law: `grads` is the gradient of `values`
    with respect to the latent, and `closed_form`, where it is not refused, is the exact expectation of
    every unbiased estimator.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """One word."""

    @property
    def is_constant(self) -> bool:
        """Whether the function is a constant, so that every estimator without a score is exactly zero."""
        return False

    def transports(self, problem: Problem) -> tuple[AbstractTransport, ...]:
        """Differentiable maps from noise to the latents where the term may be taken; the family's, as a rule."""
        return problem.family.transports

    def sampling(self, problem: Problem) -> AbstractTransport:
        """The map that is used when none is named."""
        return problem.family.sampling

    @abstractmethod
    def values(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Values:
        r"""\(f\) at the latents of a transport, in nats, on the minibatches or on all data."""

    @abstractmethod
    def grads(self, evaluation: Evaluation, transport: AbstractTransport, *, full_data: bool) -> Latents:
        r"""\(\nabla_z f\) at the latents of a transport."""

    def closed_form(self, evaluation: Evaluation, *, full_data: bool) -> FactoredGradient:
        r"""\(\nabla_w E_{q_w} f(Z)\) exactly; asked only where it is not refused."""
        raise NotImplementedError(self.refuses_closed_form(evaluation.problem))

    def refuses_closed_form(self, problem: Problem) -> str | None:
        """Why there is no closed form; `None` if there is one."""
        return f"the {self.name} term has no closed form"

    def expand(
        self,
        evaluation: Evaluation,
        anchor: Float[Array, "latent"],
        batch: Batch,
        *,
        offsets: Float[Array, "point latent"] | None = None,
    ) -> Quadratic:
        r"""Second-order Taylor expansion around an anchor, on one batch; asked only where it is not refused.

        Args:
            evaluation: of the step.
            anchor: the point \(z_0\).
            batch: of data.
            offsets: expand the average of \(f(z + \delta_k)\) over these \(\delta_k\) instead of \(f\).
        """
        raise NotImplementedError(self.refuses_expansion(evaluation.problem))

    def refuses_expansion(self, problem: Problem) -> str | None:
        """Why the function is not expanded in the latent; `None` if it is."""
        return f"the {self.name} term has no expansion in its latent"
