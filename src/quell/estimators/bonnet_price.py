# SPDX-License-Identifier: Apache-2.0
"""The estimator of second order."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Batch, Evaluation, Problem
from quell.families.factored import FactoredGradient
from quell.models.quadratic import AbstractCurvature, Quadratic, expand_function
from quell.terms import AbstractTerm, Data, Prior, batch_factor
from quell.terms.second_derivative import refuses_second_derivative


class BonnetPrice(AbstractEstimator):
    r"""Gradient and Hessian at latents, in place of gradient and noise: the theorems of Bonnet and Price.

    Under a Gaussian with mean \(\mu\) and covariance \(\Sigma\)

    $$\nabla_\mu E f = E[\nabla f], \qquad \nabla_\Sigma E f = \tfrac12 E[\nabla^2 f].$$

    A replicate takes both at a latent and at its mirror image in the mean, and averages. For a quadratic
    nothing random is left; in general the noise is that of the third and higher derivatives, while that of
    `Reparameterization` grows with the number of coordinates even for a quadratic.

    Args:
        full_data: evaluate \(f\) on all data instead of the minibatch.

    Bias: none where the gradient of \(f\) is continuous. **Where it jumps**, as that of a Laplace density or of a
    network of rectified units does, the Hessian misses the jumps, and the scale's gradient is wrong.
    Cost: two gradients and two Hessians of \(f\) a replicate, each of them `dim` products; for linear predictors
    two derivatives a datum, as `ClosedForm`.

    Example:
        >>> import quell
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.BonnetPrice())
        ControlVariate(data: rp - price)

    References: Price (1958), "A useful theorem for nonlinear devices having Gaussian inputs"; Bonnet (1964); Opper &
    Archambeau (2009), "The variational Gaussian approximation revisited".
    """

    full_data: bool = False

    @property
    def name(self) -> str:
        return "price" + suffix(None, full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data | Prior):
            return f"Price's theorem is applied to data and prior as they are, and {term.name} was given"
        if not problem.family.is_gaussian:
            return f"Price's theorem needs a Gaussian family, and {type(problem.family).__name__} is none"
        return refuses_second_derivative(problem, term)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        family = evaluation.problem.family
        latents, mean = evaluation.latents(family.sampling), family.mean(evaluation.params)

        def at(z: Array, batch: Batch) -> Quadratic:
            return _mean_expansion(evaluation, term, jnp.stack([z - mean, mean - z]), batch)

        if latents.shape[0] == 1 and not evaluation.has_batch_axis(full_data=self.full_data):
            quadratic = evaluation.map_batches(lambda batch: at(latents[0], batch), full_data=self.full_data)
            return evaluation.algebra.expected_quadratic_grad(quadratic, per_sample=False)
        quadratics = evaluation.map(at, family.sampling, full_data=self.full_data)
        return evaluation.algebra.expected_quadratic_grad(quadratics, per_sample=True)


def _mean_expansion(
    evaluation: Evaluation, term: AbstractTerm, offsets: Float[Array, "point latent"], batch: Batch
) -> Quadratic:
    """A quadratic around the mean, with the mean gradient and the mean Hessian at points around it."""
    mean = evaluation.problem.family.mean(evaluation.params)
    function = _function(evaluation.problem, term, batch)
    if function is not None:  # the mean function has one Hessian only
        return expand_function(lambda z: jnp.mean(jax.vmap(function)(z + offsets)), mean)

    def derivatives(offset: Array) -> tuple[Array, AbstractCurvature]:
        quadratic = term.expand(evaluation, mean + offset, batch)
        return quadratic.grad(mean + offset), quadratic.curvature

    slopes, curvatures = jax.vmap(derivatives)(offsets)
    return Quadratic(mean, jnp.zeros((), mean.dtype), jnp.mean(slopes, axis=0), curvatures.mean())


def _function(problem: Problem, term: AbstractTerm, batch: Batch) -> Callable[[Array], Array] | None:
    """What a term is the expectation of; `None` where an expansion is cheaper than automatic differentiation."""
    model = problem.model
    if isinstance(term, Data) and not model.has_cheap_expansion:
        return lambda z: batch_factor(problem, batch) * jnp.sum(model.log_likelihood(z, batch.rows))
    if isinstance(term, Prior) and Prior().refuses_closed_form(problem) is not None:
        return model.prior.log_prob
    return None
