# SPDX-License-Identifier: Apache-2.0
"""The score-function estimator."""

import equinox as eqx

from quell.estimators.base import AbstractEstimator, as_transport, default_transport, refuses_transport, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.terms import AbstractTerm


class ScoreFunction(AbstractEstimator):
    r"""\(f(Z) \nabla_w \log q_w(Z)\), also known as REINFORCE.

    Args:
        transport: the map that makes \(Z\) from noise; the one that the family samples with by default.
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none.
    Cost: one evaluation of \(f\) per replicate, no gradient of it.

    References: Geffner & Domke (2018), equation 4; Ranganath et al. (2014).
    """

    transport: AbstractTransport | None = eqx.field(static=True, default=None, converter=as_transport)
    full_data: bool = False

    @property
    def name(self) -> str:
        return "sf" + suffix(self.transport, full_data=self.full_data)

    @property
    def has_score(self) -> bool:
        return True

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return None if self.transport is None else refuses_transport(problem, term, self.transport)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        transport = default_transport(evaluation, term, self.transport)
        values = term.values(evaluation, transport, full_data=self.full_data)
        return evaluation.algebra.score(values, transport)
