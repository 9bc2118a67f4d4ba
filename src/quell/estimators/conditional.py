# SPDX-License-Identifier: Apache-2.0
"""The score-function estimator of a relaxed term, given the discrete sample."""

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import SAMPLE, FactoredGradient, Relaxation
from quell.terms import AbstractTerm


class ConditionalScoreFunction(AbstractEstimator):
    r"""\(f(\tilde z)\,\nabla_w \log q_w(Z) + \nabla_w f(\tilde z)\), where \(\tilde z\) is relaxed given \(Z\).

    By the law of total expectation it estimates the gradient of \(E f(\tilde z)\), as reparameterization does; but its
    first part is correlated with the score function of the discrete term, which is what makes REBAR strong.

    Args:
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none.
    Cost: one gradient of \(f\) per replicate, at latents of its own.

    References: Tucker et al. (2017), "REBAR".
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "csf" + suffix(full_data=self.full_data)

    @property
    def has_score(self) -> bool:
        return True

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if isinstance(term.sampling(problem), Relaxation):
            return None
        return f"the {term.name} term is not relaxed, so that there is nothing to condition on"

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        relaxation = term.sampling(evaluation.problem)
        assert isinstance(relaxation, Relaxation), "refused before"
        given = Relaxation(relaxation.temperature, conditional=True)
        values = term.values(evaluation, given, full_data=self.full_data)
        grads = term.grads(evaluation, given, full_data=self.full_data)
        return evaluation.algebra.score(values, SAMPLE) + FactoredGradient.from_path(given, grads)
