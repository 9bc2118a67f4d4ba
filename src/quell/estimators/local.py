# SPDX-License-Identifier: Apache-2.0
"""The local reparameterization estimator."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from quell.estimators.base import AbstractEstimator, default_transport, suffix
from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models import LinearPredictor
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.terms import AbstractTerm, Data, batch_factor


class LocalReparameterization(AbstractEstimator):
    r"""Reparameterization in the space of the predictor, where all noise that a datum does not see has gone.

    Under a Gaussian family datum \(i\) sees \(t_i = x_i^\top \mu + s_i \eta_i\) with \(s_i^2 = x_i^\top \Sigma x_i\)
    and \(\eta_i\) standard normal, read off the latent. The estimator is
    \(\sum_i f_i'(t_i) (\nabla_w x_i^\top \mu + \eta_i \nabla_w s_i)\).

    It is the expectation of `Reparameterization` given \(\eta_i\). With one datum a replicate it is therefore never
    noisier; the data of a larger minibatch share a latent, and then nothing is promised.

    Args:
        full_data: evaluate on all data instead of the minibatch.

    Bias: none.
    Cost: one derivative and one variance of the predictor a datum; as the closed form of a quadratic.

    Example:
        >>> import quell
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.LocalReparameterization())
        ControlVariate(data: rp - lr)

    References: Kingma, Salimans & Welling (2015), section 2.3.
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "lr" + suffix(None, full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data):
            return f"local reparameterization needs the data term as it is, and {term.name} was given"
        if not isinstance(problem.model, LinearPredictor):
            return f"local reparameterization needs a linear predictor, and {problem.model} is not known to have one"
        if not problem.family.is_gaussian:
            return f"local reparameterization needs a Gaussian family, and {type(problem.family).__name__} is none"
        return None

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
    model, mean = problem.model, problem.family.mean(params)
    assert isinstance(model, LinearPredictor), "refused before"

    def at(z: Array, batch: Batch) -> Quadratic:
        rows = batch.rows.features
        slope = jax.vmap(jax.grad(model.log_density))(rows @ z, batch.rows.targets)
        variance = jnp.sum(problem.family.covariance_product(params, rows) * rows, axis=-1)
        is_zero = variance == 0  # a row of zeros: its predictor has no noise
        weight = jnp.where(is_zero, 0.0, slope * (rows @ (z - mean)) / jnp.where(is_zero, 1.0, variance))
        quadratic = Quadratic(mean, jnp.zeros((), mean.dtype), slope @ rows, FactoredCurvature(rows, weight))
        return quadratic.scale(batch_factor(problem, batch))

    return at
