# SPDX-License-Identifier: Apache-2.0
"""The reparameterization estimator whose scale part is transposed."""

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import Capability, FactoredGradient
from quell.terms import AbstractTerm


class TransposedReparameterization(AbstractEstimator):
    r"""Reparameterization of a full-rank Gaussian, with noise and gradient in exchanged places.

    With \(g = \nabla f\) at \(z = \mu + L\epsilon\), \(E[L^\top g\, \epsilon^\top]\) is the symmetric matrix
    \(L^\top E[\nabla^2 f] L\). So beside \(\mathrm{tril}(g\,\epsilon^\top)\), which is `Reparameterization`,

    $$\mathrm{tril}((L^{-\top}\epsilon)\,(L^\top g)^\top)$$

    estimates the gradient in \(L\) too. The mean's gradient is \(g\) in both. Their difference costs no evaluation of
    \(f\), and is large where the scale part is noisy.

    Args:
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none.
    Cost: that of `Reparameterization`, one triangular solve and one product with \(L\) per replicate.

    Example:
        >>> import quell
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.TransposedReparameterization())
        ControlVariate(data: rp - rpt)

    References: Opper & Archambeau (2009), "The variational Gaussian approximation revisited", for the symmetric matrix.
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "rpt" + suffix(full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if term.sampling(problem) != problem.family.sampling:
            return f"the {term.name} term is not taken at latents of the family's own transport"
        return problem.family.refuses(Capability.TRIANGULAR_SCALE)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        transport = evaluation.problem.family.sampling
        return evaluation.algebra.transposed(term.grads(evaluation, transport, full_data=self.full_data))
