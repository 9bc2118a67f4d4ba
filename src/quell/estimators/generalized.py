# SPDX-License-Identifier: Apache-2.0
"""The generalized reparameterization estimator."""

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import Capability, FactoredGradient
from quell.terms import AbstractTerm


class GeneralizedReparameterization(AbstractEstimator):
    r"""\(\nabla_w f(T_w(\epsilon)) + f(Z) \nabla_w \log \bar q_w(\epsilon)\): the base noise depends on \(w\) too.

    \(\epsilon = T_w^{-1}(Z)\) is the standardised latent and \(\bar q_w\) its density: a path for what the
    standardisation follows, a score for what is left. Families with `Capability.GENERALIZED` have one.

    Args:
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none.
    Cost: one value and one gradient of \(f\) per replicate.

    Example:
        >>> import quell.estimators
        >>> quell.estimators.GeneralizedReparameterization(full_data=True).name
        'gr[all]'

    References: Ruiz, Titsias & Blei (2016), section 3; Geffner & Domke (2018), equation 4, where the
    score is to be read as that of the base noise.
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "gr" + suffix(full_data=self.full_data)

    @property
    def has_score(self) -> bool:
        return True

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return problem.family.refuses(Capability.GENERALIZED)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        transport = evaluation.problem.family.sampling
        values = term.values(evaluation, transport, full_data=self.full_data)
        grads = term.grads(evaluation, transport, full_data=self.full_data)
        return evaluation.algebra.generalized(values, grads)
