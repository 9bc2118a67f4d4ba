# SPDX-License-Identifier: Apache-2.0
"""What a variational family offers: a distribution, and the algebra of its factored gradients."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.families.factored import FactoredGradient
from quell.models.quadratic import Quadratic


class AbstractFamily(eqx.Module):
    r"""A family of distributions \(q_w\) over a flat latent; `params` is \(w\), any tree of arrays."""

    dim: eqx.AbstractVar[int]

    @property
    @abstractmethod
    def transports(self) -> tuple[str, ...]:
        """Names of the differentiable maps from noise to latent, the default first; none for a discrete family."""

    @property
    def sampling(self) -> str:
        """Name of the map that samples are made with."""
        return self.transports[0] if self.transports else "sample"

    @property
    def has_generalized(self) -> bool:
        """Whether the family has a transport whose base distribution depends on the parameters."""
        return False

    @property
    def is_gaussian(self) -> bool:
        """Whether every member is a Gaussian, so that linear functions of the latent are Gaussian too."""
        return False

    @property
    def has_natural_metric(self) -> bool:
        """Whether gradients can be measured in the inverse Fisher metric."""
        return False

    @property
    @abstractmethod
    def num_params(self) -> int:
        """Number of free parameters."""

    @property
    def num_leaf_params(self) -> tuple[int, ...]:
        """Number of free parameters of each leaf."""
        return tuple(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.init)))

    @abstractmethod
    def init(self, *, dtype: DTypeLike | None = None) -> PyTree:
        """Parameters to start from: mean zero and a small scale, unless the family was told otherwise."""

    @abstractmethod
    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        """Base noise for `num` replicates, from a distribution that does not depend on the parameters."""

    @abstractmethod
    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        r"""\(\log q_w(z)\)."""

    @abstractmethod
    def entropy(self, params: PyTree) -> Float[Array, ""]:
        r"""\(-E \log q_w(Z)\), exactly."""

    @abstractmethod
    def mean(self, params: PyTree) -> Float[Array, "latent"]:
        r"""First moment \(E Z\)."""

    @abstractmethod
    def variance(self, params: PyTree) -> Float[Array, "latent"]:
        """Variance of each coordinate."""

    @abstractmethod
    def covariance_product(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        r"""Rows times the second central moment \(\mathrm{Cov} Z\)."""

    def predictor_variance(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row"]:
        r"""Variance \(x^\top \mathrm{Cov}(Z)\, x\) of the predictor of each row."""
        return jnp.sum(self.covariance_product(params, rows) * rows, axis=-1)

    @abstractmethod
    def algebra(self, params: PyTree, noise: Float[Array, "sample noise"]) -> "AbstractGradientAlgebra":
        """The latents of one draw, with the algebra of gradients taken there."""

    def expected_quadratic(self, params: PyTree, quadratic: Quadratic) -> Float[Array, ""]:
        r"""\(E f(Z)\) of a quadratic, through the first two moments."""
        product = functools.partial(self.covariance_product, params)
        trace = quadratic.curvature.trace_with(self.variance(params), product)
        return quadratic.value(self.mean(params)) + 0.5 * trace


class AbstractGradientAlgebra(ABC):
    """One draw from a family: its latents under each transport, and what gradients taken there need.

    It lives within one traced step and keeps what was computed once (a decomposition, the latents).
    Laws: `pullback` is the average over replicates of `dense`, and `gram` is the average over
    replicates of the inner products of `dense`, both to rounding; `gram` is the sum of `leaf_grams`.
    """

    @abstractmethod
    def latents(self, transport: str) -> Float[Array, "sample latent"]:
        """The latents that the noise is carried to."""

    @abstractmethod
    def log_probs(self, transport: str) -> Float[Array, "sample"]:
        r"""\(\log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def log_prob_grads(self, transport: str) -> Float[Array, "sample latent"]:
        r"""\(\nabla_z \log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def score(self, weight: Float[Array, "sample"], transport: str) -> FactoredGradient:
        r"""\(\text{weight} \cdot \nabla_w \log q_w(z)\) at the latents of a transport."""

    @abstractmethod
    def entropy_grad(self) -> FactoredGradient:
        r"""\(\nabla_w\) of the entropy."""

    @abstractmethod
    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        r"""\(\nabla_w E f(Z)\) of a quadratic, or of one quadratic a replicate (leading axis)."""

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> FactoredGradient:
        r"""The generalized reparameterization of \(f\), given its values and gradients at the samples."""
        raise NotImplementedError("refused before: the family has no generalized reparameterization")

    @abstractmethod
    def dense(self, parts: FactoredGradient) -> PyTree[Float[Array, "sample ..."]]:
        """The sample as parameter-shaped arrays with a leading replicate axis."""

    @abstractmethod
    def pullback(self, parts: FactoredGradient) -> PyTree[Float[Array, "..."]]:
        """The average over replicates, parameter-shaped."""

    @abstractmethod
    def gram(self, samples: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        """Inner products of samples, averaged over replicates."""

    def mean_gram(self, samples: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        """Inner products of the averages over replicates: for replicates that are not independent."""
        vectors = jnp.stack([_ravel(self.pullback(sample)) for sample in samples])
        return vectors @ vectors.T

    def leaf_grams(self, samples: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        """As `gram`, for each leaf of the parameters by itself."""
        return dense_leaf_grams([self.dense(sample) for sample in samples])

    def mean_leaf_grams(self, samples: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        """As `mean_gram`, for each leaf of the parameters by itself."""
        means = [jax.tree.map(lambda leaf: leaf[None], self.pullback(sample)) for sample in samples]
        return dense_leaf_grams(means)

    def whitened(self, samples: Sequence[FactoredGradient]) -> tuple["AbstractGradientAlgebra", list[FactoredGradient]]:
        r"""Particles and samples whose plain inner products are \(a^\top F^{-1} b\), with \(F\) the Fisher matrix."""
        raise NotImplementedError("refused before: the family has no natural metric")


def dense_gram(trees: Sequence[PyTree]) -> Float[Array, "variate variate"]:
    """Average over the leading axis of inner products of dense samples."""
    num = jax.tree.leaves(trees[0])[0].shape[0]
    vectors = jnp.stack([_ravel(tree) for tree in trees])
    return vectors @ vectors.T / num


def dense_leaf_grams(trees: Sequence[PyTree]) -> Float[Array, "leaf variate variate"]:
    """As `dense_gram`, for each leaf by itself."""
    leaves = zip(*(jax.tree.leaves(tree) for tree in trees), strict=True)
    return jnp.stack([dense_gram(leaf) for leaf in leaves])


def _ravel(tree: PyTree) -> Float[Array, "flat"]:
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
