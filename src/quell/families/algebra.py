# SPDX-License-Identifier: Apache-2.0
"""The algebra of factored gradients: how they arise at one draw, are carried back, and multiplied with each other."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.families.factored import FactoredGradient
from quell.families.transport import AbstractTransport
from quell.models.quadratic import Quadratic


class AbstractGradientAlgebra(ABC):
    """One draw from a family: its latents under each transport, and what gradients taken there need.

    It lives within one traced step and keeps what was computed once (a decomposition, the latents).
    Laws: `pullback` is the average over replicates of `dense`, and `gram` is the average over
    replicates of the inner products of `dense`, both to rounding; `gram` is the sum of `leaf_grams`.
    """

    @abstractmethod
    def latents(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        """The latents that the noise is carried to."""

    @abstractmethod
    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        r"""\(\log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def log_prob_grads(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        r"""\(\nabla_z \log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        r"""\(\text{weight} \cdot \nabla_w \log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def entropy_grad(self) -> FactoredGradient:
        r"""\(\nabla_w\) of the entropy; asked only of a family that offers one."""

    @abstractmethod
    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        r"""\(\nabla_w E f(Z)\) of a quadratic, or of one quadratic per replicate (leading axis)."""

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> FactoredGradient:
        r"""The generalized reparameterization of \(f\), given its values and gradients at the samples."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    def transposed(self, grads: Float[Array, "sample latent"]) -> FactoredGradient:
        """The default path of gradients with noise and gradient exchanged in the scale's part."""
        raise NotImplementedError("refused before: the family has no triangular scale")

    def change_of_variables(self) -> FactoredGradient:
        r"""\(\nabla_w \log q_w(T_w(\epsilon))\), of the density and of the latent at once."""
        raise NotImplementedError("refused before: the family has no log density without an inverse")

    @abstractmethod
    def dense(self, gradient: FactoredGradient) -> PyTree[Float[Array, "sample ..."]]:
        """The gradient as parameter-shaped arrays with a leading replicate axis."""

    @abstractmethod
    def pullback(self, gradient: FactoredGradient) -> PyTree[Float[Array, "..."]]:
        """The average over replicates, parameter-shaped."""

    def gram(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        """Inner products of gradients, averaged over replicates."""
        return dense_gram([self.dense(gradient) for gradient in gradients])

    def mean_gram(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        """Inner products of the averages over replicates: for replicates that are not independent."""
        vectors = jnp.stack([_ravel(self.pullback(gradient)) for gradient in gradients])
        return vectors @ vectors.T

    def leaf_grams(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        """As `gram`, for each leaf of the parameters by itself."""
        return dense_leaf_grams([self.dense(gradient) for gradient in gradients])

    def mean_leaf_grams(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        """As `mean_gram`, for each leaf of the parameters by itself."""
        means = [jax.tree.map(lambda leaf: leaf[None], self.pullback(gradient)) for gradient in gradients]
        return dense_leaf_grams(means)

    def whitened(
        self, gradients: Sequence[FactoredGradient]
    ) -> tuple["AbstractGradientAlgebra", list[FactoredGradient]]:
        r"""Algebra and gradients whose plain inner products are \(a^\top F^{-1} b\), with the Fisher matrix \(F\)."""
        raise NotImplementedError("refused before: the family has no natural metric")


def dense_gram(trees: Sequence[PyTree]) -> Float[Array, "variate variate"]:
    """Average over the leading axis of inner products of dense gradients."""
    num = jax.tree.leaves(trees[0])[0].shape[0]
    vectors = jnp.stack([_ravel(tree) for tree in trees])
    return vectors @ vectors.T / num


def dense_leaf_grams(trees: Sequence[PyTree]) -> Float[Array, "leaf variate variate"]:
    """As `dense_gram`, for each leaf by itself."""
    leaves = zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)
    return jnp.stack([dense_gram(leaf) for leaf in leaves])


def _ravel(tree: PyTree) -> Float[Array, "flat"]:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
