# SPDX-License-Identifier: Apache-2.0
"""Gradients by differentiating a family's sampling: any distribution, few parameters."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.families.algebra import AbstractGradientAlgebra
from quell.families.factored import FactoredGradient
from quell.families.transport import AbstractTransport
from quell.models.quadratic import Quadratic


class DenseAlgebra(AbstractGradientAlgebra):
    """One parameter-shaped array per replicate.

    A map is differentiated once, however many estimators carry something back through it.

    Args:
        family: that was drawn from, an `AbstractFamily`.
        params: of the family.
        noise: of the draw.
    """

    def __init__(self, family: Any, params: PyTree, noise: Float[Array, "sample noise"]) -> None:
        """Keep what the draw was made of."""
        self.family, self.params, self.noise = family, params, noise
        self._kept: dict[Hashable, Any] = {}

    def latents(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        def make() -> Float[Array, "sample latent"]:
            return jax.vmap(lambda noise: self.family.latent(transport, self.params, noise))(self.noise)

        return self._keep(("latents", transport), make)

    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        return jax.vmap(lambda z: self.family.log_prob(self.params, z))(self.latents(transport))

    def log_prob_grads(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        grad = jax.grad(self.family.log_prob, argnums=1)
        return jax.vmap(lambda z: grad(self.params, z))(self.latents(transport))

    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        log_density = functools.partial(self.family.log_density, transport)
        return FactoredGradient(dense=self._carry_back(("score", transport), log_density, weight))

    def entropy_grad(self) -> FactoredGradient:
        return FactoredGradient.from_exact(jax.grad(self.family.entropy)(self.params))

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        def grad(one: Quadratic) -> PyTree:
            return jax.grad(lambda w: self.family.expected_quadratic(w, one))(self.params)

        if per_sample:
            return FactoredGradient(dense=jax.vmap(grad)(quadratic))
        return FactoredGradient.from_exact(grad(quadratic))

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> FactoredGradient:
        held = jax.lax.stop_gradient(self.params)

        def moved_and_log_density(w: PyTree, noise: Array) -> tuple[Array, Array]:
            return self.family.generalized(w, held, noise)

        return FactoredGradient(dense=self._carry_back("generalized", moved_and_log_density, (grads, values)))

    def dense(self, gradient: FactoredGradient) -> PyTree:
        num = self.noise.shape[0]
        total = jax.tree.map(lambda leaf: jnp.zeros((num, *leaf.shape), leaf.dtype), self.params)
        for path in gradient.paths:
            carried = self._carry_back(("path", path.transport), self._function(path.transport), path.cotangent)
            total = jax.tree.map(jnp.add, total, carried)
        for exact in gradient.exacts:
            weight = jnp.ones(num, self.noise.dtype) if exact.weight is None else exact.weight
            total = jax.tree.map(lambda t, v, w=weight: t + jnp.tensordot(w, v, 0), total, exact.value)
        if gradient.dense is not None:
            total = jax.tree.map(jnp.add, total, gradient.dense)
        return total

    def pullback(self, gradient: FactoredGradient) -> PyTree:
        """All replicates at once go back through a map, so that no array for each is made."""
        num = self.noise.shape[0]
        rest = FactoredGradient(exacts=gradient.exacts, dense=gradient.dense)
        total = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), self.dense(rest))
        if not gradient.paths:
            return total
        functions = [self._function(path.transport) for path in gradient.paths]

        def images(params: PyTree) -> list[Array]:
            return [jax.vmap(lambda row, map_=one: map_(params, row))(self.noise) for one in functions]

        cotangents = [(path.cotangent / num).astype(self.noise.dtype) for path in gradient.paths]
        (carried,) = jax.vjp(images, self.params)[1](cotangents)
        return jax.tree.map(jnp.add, total, carried)

    def _function(self, transport: AbstractTransport) -> Callable[[PyTree, Array], Array]:
        """The map of parameters and a row of noise that a path goes back through."""
        return functools.partial(self.family.latent, transport)

    def _carry_back(self, name: Hashable, function: Callable[..., Any], cotangent: PyTree) -> PyTree:
        """Carry cotangents of a function of (params, row of noise) back to the parameters, replicate by replicate."""

        def differentiate() -> PyTree:
            return jax.vmap(lambda row: jax.vjp(lambda w: function(w, row), self.params)[1])(self.noise)

        back = self._keep(name, differentiate)
        cotangent = jax.tree.map(lambda leaf: leaf.astype(self.noise.dtype), cotangent)
        return jax.vmap(lambda one, row: one(row)[0])(back, cotangent)

    def _keep(self, name: Hashable, make: Callable[[], Any]) -> Any:
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]
