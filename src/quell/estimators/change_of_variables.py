# SPDX-License-Identifier: Apache-2.0
"""The variational term of flows, whose densities are known where their samples come from."""

from quell.estimators.base import AbstractEstimator
from quell.evaluation import Evaluation, Problem
from quell.families import Capability, FactoredGradient
from quell.terms import AbstractTerm, Variational


class ChangeOfVariables(AbstractEstimator):
    r"""\(\nabla_w \log q_w(T_w(\epsilon))\) of the variational term, through the density and the sample at once.

    With \(\log q_w(T_w(\epsilon)) = \log \phi(\epsilon) - \log |\det T_w'(\epsilon)|\) it needs no inverse of a flow.
    It is the path of `Reparameterization` plus the score: with the score as a variate of weight minus one it is
    sticking the landing, which needs the inverse of the Jacobian.

    Bias: none.
    Cost: one pass back through the transport per replicate.

    References: Rezende & Mohamed (2015), section 4.2; Roeder et al. (2017).
    """

    @property
    def name(self) -> str:
        return "forward"

    @property
    def has_score(self) -> bool:
        return True

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if term != Variational():
            return "only the variational term is the density of the samples"
        return problem.family.refuses(Capability.FORWARD_DENSITY)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        return evaluation.algebra.change_of_variables()
