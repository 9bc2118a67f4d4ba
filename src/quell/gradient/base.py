# SPDX-License-Identifier: Apache-2.0
"""The base gradient: one unbiased estimator for each term of the ELBO."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.estimators import (
    AbstractEstimator,
    ClosedForm,
    GeneralizedReparameterization,
    Reparameterization,
    ScoreFunction,
)
from quell.evaluation import Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.terms import AbstractTerm, Data, Prior, Variational, joint
from quell.variates.memory import refuses_memory


class BaseGradient(eqx.Module):
    r"""An unbiased estimator of \(\nabla_w \mathrm{ELBO} = g_1 + g_2 - g_3\), with an estimator for each term.

    Args:
        data: for the data term.
        prior: for the prior term.
        variational: for the variational term.

    Bias: none.
    Cost: one gradient of the log joint a replicate with the default, which is the paper's.
    """

    data: AbstractEstimator = Reparameterization()
    prior: AbstractEstimator = Reparameterization()
    variational: AbstractEstimator = ClosedForm()

    @classmethod
    def of(cls, estimator: type[AbstractEstimator]) -> "BaseGradient":
        """One kind of estimator for data and prior, the exact entropy for the variational term."""
        return cls(estimator(), estimator(), ClosedForm())

    def refuses(self, problem: Problem) -> str | None:
        """Why the base gradient cannot be used for a problem; `None` if it can."""
        reasons = (estimator.refuses(problem, term) for term, estimator in self._pairs())
        reason = next((reason for reason in reasons if reason is not None), None)
        return reason or refuses_memory(problem, lambda at: at.algebra.pullback(self.sample(at)))

    def sample(self, evaluation: Evaluation) -> FactoredGradient:
        """One gradient of the ELBO a replicate, in nats."""
        data, prior, variational = (estimator.estimate(evaluation, term) for term, estimator in self._pairs())
        return data + prior - variational

    def elbo(self, evaluation: Evaluation) -> Float[Array, ""]:
        """An unbiased estimate of the ELBO from the same draw.

        The density of the family is that of the samples, not its expectation: the nearer the family is to the
        posterior, the more of the noise cancels.
        """
        transport = evaluation.problem.family.sampling
        values = joint().values(evaluation, transport, full_data=False)
        return jnp.mean(values - evaluation.algebra.log_probs(transport))

    def _pairs(self) -> tuple[tuple[AbstractTerm, AbstractEstimator], ...]:
        return (Data(), self.data), (Prior(), self.prior), (Variational(), self.variational)


def default_base(problem: Problem) -> BaseGradient:
    """The base gradient that suits a family: a path where there is one, else a path for a part, else scores."""
    if problem.family.transports:
        return BaseGradient.of(Reparameterization)
    return BaseGradient.of(GeneralizedReparameterization if problem.family.has_generalized else ScoreFunction)
