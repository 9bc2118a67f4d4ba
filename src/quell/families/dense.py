# SPDX-License-Identifier: Apache-2.0
"""Families whose gradients are carried to the parameters at once: few parameters a coordinate, any distribution."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.families.base import AbstractFamily, AbstractGradientAlgebra, dense_gram
from quell.families.factored import Exact, FactoredGradient
from quell.models.quadratic import Quadratic


class AbstractDenseFamily(AbstractFamily):
    """A family that says how it samples; its gradients come from differentiating that."""

    @abstractmethod
    def transport(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        """Carry one row of noise to a latent; differentiable in the parameters for every name in `transports`."""

    def log_density(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, ""]:
        """Log density of what a map makes of the noise, as a function of the parameters with that value held."""
        return self.log_prob(params, self.transport(name, jax.lax.stop_gradient(params), noise))

    def generalized_base(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
        """Standardise a latent: the inverse of `generalized_transport`."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    def generalized_transport(
        self, params: PyTree, base: Float[Array, "latent"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        """Carry a standardised latent back, and the log determinant of that map's Jacobian in the latent."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    def algebra(self, params: PyTree, noise: Float[Array, "sample noise"]) -> "DenseAlgebra":
        return DenseAlgebra(self, params, noise)


class DenseAlgebra(AbstractGradientAlgebra):
    """Gradients by differentiation, one parameter-shaped array a replicate.

    A map is differentiated once, however many estimators carry something back through it.

    Args:
        family: that was drawn from.
        params: of the family.
        noise: of the draw.
    """

    def __init__(self, family: AbstractDenseFamily, params: PyTree, noise: Float[Array, "sample noise"]) -> None:
        """Keep what the draw was made of."""
        self.family, self.params, self.noise = family, params, noise
        self._kept: dict[Hashable, Any] = {}

    def latents(self, transport: str) -> Float[Array, "sample latent"]:
        def make() -> Float[Array, "sample latent"]:
            return jax.vmap(lambda noise: self.family.transport(transport, self.params, noise))(self.noise)

        return self._keep(("latents", transport), make)

    def log_probs(self, transport: str) -> Float[Array, "sample"]:
        return jax.vmap(lambda z: self.family.log_prob(self.params, z))(self.latents(transport))

    def log_prob_grads(self, transport: str) -> Float[Array, "sample latent"]:
        grad = jax.grad(self.family.log_prob, argnums=1)
        return jax.vmap(lambda z: grad(self.params, z))(self.latents(transport))

    def score(self, weight: Float[Array, "sample"], transport: str) -> FactoredGradient:
        log_density = functools.partial(self.family.log_density, transport)
        return FactoredGradient(dense=self._carry_back(("score", transport), log_density, lambda: self.noise, weight))

    def entropy_grad(self) -> FactoredGradient:
        return FactoredGradient(exacts=(Exact(jax.grad(self.family.entropy)(self.params)),))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        def grad(one: Quadratic) -> PyTree:
            return jax.grad(lambda w: self.family.expected_quadratic(w, one))(self.params)

        if per_sample:
            return FactoredGradient(dense=jax.vmap(grad)(quadratic))
        return FactoredGradient(exacts=(Exact(grad(quadratic)),))

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> FactoredGradient:
        def bases() -> Float[Array, "sample latent"]:
            latents = self.latents(self.family.sampling)
            return jax.vmap(lambda z: self.family.generalized_base(self.params, z))(latents)

        def moved_and_log_density(w: PyTree, base: Array) -> tuple[Array, Array]:
            moved, log_det = self.family.generalized_transport(w, base)
            return moved, self.family.log_prob(w, moved) + log_det

        return FactoredGradient(dense=self._carry_back("generalized", moved_and_log_density, bases, (grads, values)))

    def dense(self, parts: FactoredGradient) -> PyTree:
        num = self.noise.shape[0]
        total = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape), leaf.dtype), self.params)
        for name, cotangent in parts.paths.items():
            transport = functools.partial(self.family.transport, name)
            path = self._carry_back(("path", name), transport, lambda: self.noise, cotangent)
            total = jax.tree.map(jnp.add, total, path)
        for exact in parts.exacts:
            weight = jnp.ones(num, self.noise.dtype) if exact.weight is None else exact.weight
            total = jax.tree.map(lambda t, v, w=weight: t + jnp.tensordot(w, v, 0), total, exact.value)
        if parts.dense is not None:
            total = jax.tree.map(jnp.add, total, parts.dense)
        return total

    def pullback(self, parts: FactoredGradient) -> PyTree:
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.dense(parts))

    def gram(self, samples: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        return dense_gram([self.dense(sample) for sample in samples])

    def _carry_back(
        self, name: Hashable, function: Callable[..., Any], rows: Callable[[], Array], cotangent: PyTree
    ) -> PyTree:
        """Carry cotangents of a function of (params, row) back to the parameters, a replicate at a time."""

        def differentiate() -> PyTree:
            return jax.vmap(lambda row: jax.vjp(lambda w: function(w, row), self.params)[1])(rows())

        back = self._keep(name, differentiate)
        cotangent = jax.tree.map(lambda leaf: leaf.astype(self.noise.dtype), cotangent)
        return jax.vmap(lambda one, row: one(row)[0])(back, cotangent)

    def _keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]
