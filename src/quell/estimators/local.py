# SPDX-License-Identifier: Apache-2.0
"""The local reparameterization estimator."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array

from quell.estimators.base import AbstractEstimator, default_transport, suffix
from quell.evaluation import Batch, Evaluation, Problem, batch_factor
from quell.families import Capability, FactoredGradient
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.terms import AbstractTerm, Data


class LocalReparameterization(AbstractEstimator):
    r"""Reparameterization in the space of the predictor, where all noise that a datum does not see has gone.

    Under a Gaussian family datum \(i\) sees \(t_i = x_i^\top \mu + s_i \eta_i\) with \(s_i^2 = x_i^\top \Sigma x_i\)
    and \(\eta_i\) standard normal, read off the latent. The estimator is
    \(\sum_i f_i'(t_i) (\nabla_w x_i^\top \mu + \eta_i \nabla_w s_i)\).

    It is the expectation of `Reparameterization` given \(\eta_i\). With one datum per replicate it is therefore never
    noisier; the data of a larger minibatch share a latent, and then nothing is promised.

    Args:
        full_data: evaluate on all data instead of the minibatch.

    Bias: none.
    Cost: one derivative and one variance of the predictor per datum; as the closed form of a quadratic.

    Example:
        >>> import quell
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.LocalReparameterization())
        ControlVariate(data: rp - lr)

    References: Kingma, Salimans & Welling (2015), section 2.3.
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "lr" + suffix(full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data):
            return f"local reparameterization needs the data term as it is, and {term.name} was given"
        if problem.model.predictor is None:
            return f"local reparameterization needs a linear predictor, and {problem.model} is not known to have one"
        return problem.family.refuses(Capability.GAUSSIAN, Capability.MOMENTS)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        quadratics = evaluation.map(
            _quadratic(evaluation), default_transport(evaluation, term, None), full_data=self.full_data
        )
        return evaluation.algebra.expected_quadratic_grad(quadratics, per_sample=True)


def _quadratic(evaluation: Evaluation) -> Callable[[Array, Batch], Quadratic]:
    r"""At one latent, a quadratic whose expected gradient is the estimate.

    With curvature \(c_i = f_i' \eta_i / s_i\) the gradient of half the trace, \(\tfrac12 c_i \nabla_w s_i^2\), is
    \(f_i' \eta_i \nabla_w s_i\).
    """
    problem, params = evaluation.problem, evaluation.params
    predictor, mean = problem.predictor, problem.family.mean(params)
    assert predictor is not None, "refused before"

    def at(z: Array, batch: Batch) -> Quadratic:
        rows = predictor.rows(batch.rows)
        slope = predictor.slopes(rows @ z, batch.rows)
        variance = jnp.sum(problem.family.covariance_product(params, rows) * rows, axis=-1)
        is_zero = variance == 0  # a row of zeros: its predictor has no noise
        weight = jnp.where(is_zero, 0.0, slope * (rows @ (z - mean)) / jnp.where(is_zero, 1.0, variance))
        quadratic = Quadratic(mean, jnp.zeros((), mean.dtype), slope @ rows, FactoredCurvature(rows, weight))
        return quadratic.scale(batch_factor(problem, batch))

    return at
