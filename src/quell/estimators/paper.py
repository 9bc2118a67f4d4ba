# SPDX-License-Identifier: Apache-2.0
"""The paper's estimators: score function, reparameterization, generalized reparameterization and closed form.

References: Geffner & Domke (2018), equation 4.
"""

import equinox as eqx

from quell.estimators.base import AbstractEstimator, as_transport, default_transport, refuses_transport, suffix
from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, Capability, FactoredGradient
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
