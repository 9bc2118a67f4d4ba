# SPDX-License-Identifier: Apache-2.0
"""The closed form."""

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import FactoredGradient
from quell.terms import AbstractTerm


class ClosedForm(AbstractEstimator):
    r"""\(\nabla_w E_{q_w} f(Z)\) exactly: no noise is left, only that of the minibatch.

    Args:
        full_data: take \(f\) on all data instead of the minibatch; then nothing random is left.

    Bias: none.
    Cost: no evaluation at a latent. A quadratic costs its gradient and Hessian at the anchor.

    References: Geffner & Domke (2018), equation 4 and the appendix's lemma on full covariance.
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "cf" + suffix(full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return term.refuses_closed_form(problem)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        return term.closed_form(evaluation, full_data=self.full_data)
