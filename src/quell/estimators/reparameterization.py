# SPDX-License-Identifier: Apache-2.0
"""The reparameterization estimator."""

import equinox as eqx

from quell.estimators.base import AbstractEstimator, as_transport, default_transport, refuses_transport, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.terms import AbstractTerm


class Reparameterization(AbstractEstimator):
    r"""\(\nabla_w f(T_w(\epsilon))\) through a transport \(T_w\) from noise to latent.

    Args:
        transport: the family's first by default. For a full-rank Gaussian `quell.CHOLESKY` is the paper's RP1 and
            `quell.SYMMETRIC` its RP2; `quell.MIRRORED` is RP1 with the noise turned round.
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none.
    Cost: one gradient of \(f\) per replicate; `SYMMETRIC` adds one eigendecomposition per step.

    References: Geffner & Domke (2018), equation 4; Kingma & Welling (2014).
    """

    transport: AbstractTransport | None = eqx.field(static=True, default=None, converter=as_transport)
    full_data: bool = False

    @property
    def name(self) -> str:
        return "rp" + suffix(self.transport, full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return refuses_transport(problem, term, self.transport)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        transport = default_transport(evaluation, term, self.transport)
        return FactoredGradient.from_path(transport, term.grads(evaluation, transport, full_data=self.full_data))
