# SPDX-License-Identifier: Apache-2.0
"""The Bonnet–Price estimator: gradients and Hessians at latents."""

import jax.numpy as jnp
from jaxtyping import Array

from quell.estimators.base import AbstractEstimator, suffix
from quell.evaluation import Batch, Evaluation, Problem
from quell.families import Capability, FactoredGradient
from quell.models.quadratic import Quadratic
from quell.terms import AbstractTerm


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
    Cost: two gradients and two Hessians of \(f\) per replicate, each of them `dim` products; for linear predictors
    two derivatives per datum, as `ClosedForm`.

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
        return "price" + suffix(full_data=self.full_data)

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        return problem.family.refuses(Capability.GAUSSIAN, Capability.MOMENTS) or term.refuses_expansion(problem)

    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        family = evaluation.problem.family
        latents, mean = evaluation.latents(family.sampling), family.mean(evaluation.params)

        def at(z: Array, batch: Batch) -> Quadratic:
            return term.expand(evaluation, mean, batch, offsets=jnp.stack([z - mean, mean - z]))

        if latents.shape[0] == 1 and not evaluation.has_batch_axis(full_data=self.full_data):
            quadratic = evaluation.map_batches(lambda batch: at(latents[0], batch), full_data=self.full_data)
            return evaluation.algebra.expected_quadratic_grad(quadratic, per_sample=False)
        quadratics = evaluation.map(at, family.sampling, full_data=self.full_data)
        return evaluation.algebra.expected_quadratic_grad(quadratics, per_sample=True)
