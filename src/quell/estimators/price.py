# SPDX-License-Identifier: Apache-2.0
"""The estimator of second order."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Batch, Evaluation
from quell.parts import Parts
from quell.problem import Problem
from quell.quadratic import AbstractCurvature, Quadratic
from quell.terms import AbstractTerm, Data, Prior
from quell.terms.second_derivative import refuses_second_derivative


class Price(AbstractEstimator):
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
        >>> quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.Price())
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

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> Parts:
        mean = evaluation.problem.family.mean(evaluation.params)

        def derivatives(point: Array, batch: Batch) -> tuple[Array, AbstractCurvature]:
            quadratic = term.expand(evaluation, point, batch)
            return quadratic.grad(point), quadratic.curvature

        def at(z: Array, batch: Batch) -> Quadratic:
            slopes, curvatures = jax.vmap(derivatives, in_axes=(0, None))(jnp.stack([z, 2.0 * mean - z]), batch)
            return Quadratic(mean, jnp.zeros((), mean.dtype), jnp.mean(slopes, axis=0), curvatures.mean())

        quadratics = evaluation.map(at, evaluation.problem.family.sampling, full_data=self.full_data)
        if evaluation.draw.noise.shape[0] > 1:
            return evaluation.particles.expected_quadratic_grad(quadratics, per_sample=True)
        single = jax.tree.map(lambda leaf: leaf[0], quadratics)
        return evaluation.particles.expected_quadratic_grad(single, per_sample=False)
