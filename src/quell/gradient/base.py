# SPDX-License-Identifier: Apache-2.0
"""The base gradient: one unbiased estimator for each term of the ELBO."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.estimators import (
    AbstractEstimator,
    ChangeOfVariables,
    ClosedForm,
    GeneralizedReparameterization,
    Reparameterization,
    ScoreFunction,
)
from quell.evaluation import Evaluation, Problem
from quell.evaluation.problem import expected_prior_and_entropy
from quell.families import Capability, FactoredGradient
from quell.terms import AbstractTerm, Data, Prior, Variational
from quell.variates.cost import refuses_memory

_REMEDY = (
    "the default base makes no such array itself; compute the log density row by row, as by "
    "`jax.lax.map(jax.checkpoint(row), rows)`"
)


class BaseGradient(eqx.Module):
    r"""An unbiased estimator of \(\nabla_w \mathrm{ELBO} = g_1 + g_2 - g_3\), with an estimator for each term.

    Args:
        data: for the data term.
        prior: for the prior term.
        variational: for the variational term.

    Bias: none.
    Cost: one gradient of the log joint per replicate with the default, which is the paper's.
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
        # A fit of known expectations samples for diagnostics alone.
        if reason is not None or problem.expectation is not None:
            return reason
        return refuses_memory(problem, lambda at: at.algebra.pullback(self.sample(at)), remedy=_REMEDY)

    def sample(self, evaluation: Evaluation) -> FactoredGradient:
        """One gradient of the ELBO per replicate, in nats."""
        data, prior, variational = (estimator.estimate(evaluation, term) for term, estimator in self._pairs())
        return data + prior - variational

    def elbo(self, evaluation: Evaluation) -> Float[Array, ""]:
        """An unbiased estimate of the ELBO from the same draw; the ELBO itself where the gradient is exact.

        Elsewhere the density of the family is that of the samples, not its expectation: the nearer the family is to
        the posterior, the more of the noise cancels.
        """
        if self.is_exact(evaluation):
            return Data().expectation(evaluation).value + expected_prior_and_entropy(
                evaluation.problem, evaluation.params
            )
        transport = evaluation.problem.family.sampling
        values = sum(term.values(evaluation, transport, full_data=False) for term in (Data(), Prior()))
        return jnp.mean(values - evaluation.algebra.log_probs(transport))

    def is_exact(self, evaluation: Evaluation) -> bool:
        """Whether nothing is random: every term in closed form, on all data, through linear predictors."""
        closed, on_all = ClosedForm(), ClosedForm(full_data=True)
        sees_all = self.data == on_all or (self.data == closed and evaluation.draw.index is None)
        is_closed = sees_all and self.prior == closed and self.variational == closed
        return is_closed and evaluation.problem.predictor is not None

    def _pairs(self) -> tuple[tuple[AbstractTerm, AbstractEstimator], ...]:
        return (Data(), self.data), (Prior(), self.prior), (Variational(), self.variational)


def default_base(problem: Problem) -> BaseGradient:
    """The base gradient that suits a family: a path where there is one, else a path for a part, else scores.

    The variational term has a closed form where the entropy has one. Elsewhere it is sampled; of a flow by the change
    of variables.
    """
    family = problem.family
    main: AbstractEstimator = ScoreFunction()
    if family.transports:
        main = Reparameterization()
    elif family.refuses(Capability.GENERALIZED) is None:
        main = GeneralizedReparameterization()
    variational = main if family.refuses(Capability.FORWARD_DENSITY) else ChangeOfVariables()
    return BaseGradient(main, main, ClosedForm() if family.refuses(Capability.ENTROPY) is None else variational)
