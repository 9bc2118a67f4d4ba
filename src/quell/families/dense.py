# SPDX-License-Identifier: Apache-2.0
"""Families whose gradients are carried to the parameters at once: few parameters a coordinate, any distribution."""

from abc import abstractmethod
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.families.base import AbstractFamily, AbstractParticles, dense_gram
from quell.parts import Exact, Parts
from quell.quadratic import Quadratic


class AbstractDenseFamily(AbstractFamily):
    """A family that says how it samples; its gradients come from differentiating that."""

    @abstractmethod
    def transport(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        """Carry one row of noise to a latent; differentiable in the parameters for every name in `transports`."""

    def log_density(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, ""]:
        """Log density of what a map makes of the noise, as a function of the parameters with that value held."""
        return self.log_prob(params, jax.lax.stop_gradient(self.transport(name, params, noise)))

    def generalized_base(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
        """Standardise a latent: the inverse of `generalized_transport`."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    def generalized_transport(
        self, params: PyTree, base: Float[Array, "latent"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        """Carry a standardised latent back, and the log determinant of that map's Jacobian in the latent."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    def particles(self, params: PyTree, noise: Float[Array, "sample noise"]) -> "DenseParticles":
        return DenseParticles(self, params, noise)


class DenseParticles(AbstractParticles):
    """Gradients by differentiation, one parameter-shaped array a replicate.

    Args:
        family: that was drawn from.
        params: of the family.
        noise: of the draw.
    """

    def __init__(self, family: AbstractDenseFamily, params: PyTree, noise: Float[Array, "sample noise"]) -> None:
        """Keep what the draw was made of."""
        self.family, self.params, self.noise = family, params, noise

    def latents(self, transport: str) -> Float[Array, "sample latent"]:
        return jax.vmap(lambda noise: self.family.transport(transport, self.params, noise))(self.noise)

    def log_prob_grads(self, transport: str) -> Float[Array, "sample latent"]:
        grad = jax.grad(self.family.log_prob, argnums=1)
        return jax.vmap(lambda z: grad(self.params, z))(self.latents(transport))

    def score(self, weight: Float[Array, "sample"], transport: str) -> Parts:
        def one(noise: Array, factor: Array) -> PyTree:
            grad = jax.grad(lambda w: self.family.log_density(transport, w, noise))(self.params)
            return jax.tree.map(lambda leaf: factor * leaf, grad)

        return Parts(dense=jax.vmap(one)(self.noise, weight))

    def entropy_grad(self) -> Parts:
        return Parts(exacts=(Exact(jax.grad(self.family.entropy)(self.params)),))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> Parts:
        def grad(one: Quadratic) -> PyTree:
            return jax.grad(lambda w: self.family.expected_quadratic(w, one))(self.params)

        if per_sample:
            return Parts(dense=jax.vmap(grad)(quadratic))
        return Parts(exacts=(Exact(grad(quadratic)),))

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> Parts:
        def one(z: Array, value: Array, grad: Array) -> PyTree:
            base = jax.lax.stop_gradient(self.family.generalized_base(self.params, z))

            def surrogate(w: PyTree) -> Array:
                moved, log_det = self.family.generalized_transport(w, base)
                return grad @ moved + value * (self.family.log_prob(w, moved) + log_det)

            return jax.grad(surrogate)(self.params)

        return Parts(dense=jax.vmap(one)(self.latents(self.family.sampling), values, grads))

    def dense(self, parts: Parts) -> PyTree:
        num = self.noise.shape[0]
        total = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape), leaf.dtype), self.params)
        for name, cotangent in parts.paths.items():
            total = jax.tree.map(jnp.add, total, self._carry_back(name, cotangent))
        for exact in parts.exacts:
            weight = jnp.ones(num, self.noise.dtype) if exact.weight is None else exact.weight
            total = jax.tree.map(lambda t, v, w=weight: t + jnp.tensordot(w, v, 0), total, exact.value)
        if parts.dense is not None:
            total = jax.tree.map(jnp.add, total, parts.dense)
        return total

    def pullback(self, parts: Parts) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.dense(parts))

    def gram(self, samples: Sequence[Parts]) -> Float[Array, "variate variate"]:
        return dense_gram([self.dense(sample) for sample in samples])

    def _carry_back(self, name: str, cotangent: Float[Array, "sample latent"]) -> PyTree:
        def one(noise: Array, row: Array) -> PyTree:
            return jax.grad(lambda w: row @ self.family.transport(name, w, noise))(self.params)

        return jax.vmap(one)(self.noise, cotangent)
