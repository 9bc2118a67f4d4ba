# SPDX-License-Identifier: Apache-2.0
"""What a variational family is: sampling and a log density; and what it may offer beyond that."""

import enum
import functools
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.families.algebra import AbstractGradientAlgebra
from quell.families.dense import DenseAlgebra
from quell.families.gaussian import Gaussian
from quell.families.geometry import AbstractGeometry
from quell.families.transport import SAMPLE, AbstractTransport
from quell.models.quadratic import Quadratic


class Capability(enum.Enum):
    """What a family may offer beyond sampling and a log density; the value is what its absence is called."""

    ENTROPY = "entropy in closed form"
    MOMENTS = "moments in closed form"
    GAUSSIAN = "Gaussian linear functions of its latent"
    GEOMETRY = "known Fisher geometry"
    NATURAL_METRIC = "inner products in the inverse Fisher metric"
    GENERALIZED = "generalized reparameterization"
    TRIANGULAR_SCALE = "triangular scale matrix"
    RELAXATION = "continuous relaxation"
    FORWARD_DENSITY = "log density of its samples without an inverse"


class AbstractFamily(eqx.Module):
    r"""A family of distributions \(q_w\) over a flat latent; `params` is \(w\), any tree of arrays.

    A family must offer `init`, `sample` and `log_prob`. The rest are capabilities: a family lists those it has in
    `capabilities` and implements their methods; estimators, terms and optimisers ask with `refuses`.

    | capability | methods |
    |---|---|
    | `ENTROPY` | `entropy` |
    | `MOMENTS` | `mean`, `variance`, `covariance_product` |
    | `GAUSSIAN` | `gaussian`, which follows from the moments |
    | `GEOMETRY` | `geometry` |
    | `NATURAL_METRIC` | `whitened` of its algebra |
    | `GENERALIZED` | `generalized` |
    | `TRIANGULAR_SCALE` | `transposed` of its algebra |
    | `RELAXATION` | `latent` of a `Relaxation` |
    | `FORWARD_DENSITY` | `forward_log_prob` |

    Gradients come from differentiating `sample`, one parameter-shaped array per replicate, unless the family brings a
    factored `algebra` of its own.
    """

    dim: eqx.AbstractVar[int]

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the family offers beyond sampling and a log density."""
        return frozenset()

    def refuses(self, *needed: Capability) -> str | None:
        """The first of the capabilities that the family lacks, in words; `None` if it has all."""
        missing = next((capability for capability in needed if capability not in self.capabilities), None)
        return None if missing is None else f"{type(self).__name__} has no {missing.value}"

    @abstractmethod
    def init(self, *, dtype: DTypeLike | None = None) -> PyTree:
        """Parameters to start from: mean zero and a small scale, unless the family was told otherwise."""

    @abstractmethod
    def sample(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        """Carry one row of base noise to a latent, differentiably in the parameters unless `transports` is empty."""

    @abstractmethod
    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        r"""\(\log q_w(z)\)."""

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        """Base noise for `num` replicates, from a distribution that does not depend on the parameters.

        By default one standard normal per coordinate.
        """
        return jax.random.normal(key, (num, self.dim), dtype)

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        """The differentiable maps from noise to latent, the default first; none for a discrete family."""
        return (SAMPLE,)

    @property
    def sampling(self) -> AbstractTransport:
        """The map that samples are made with."""
        return self.transports[0] if self.transports else SAMPLE

    def latent(
        self, transport: AbstractTransport, params: PyTree, noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        """Carry one row of noise to a latent through one of the family's maps; by default there is only `sample`."""
        return self.sample(params, noise)

    def log_density(
        self, transport: AbstractTransport, params: PyTree, noise: Float[Array, "noise"]
    ) -> Float[Array, ""]:
        """Log density of what a map makes of the noise, as a function of the parameters with that value held."""
        return self.log_prob(params, self.latent(transport, jax.lax.stop_gradient(params), noise))

    def algebra(self, params: PyTree, noise: Float[Array, "sample noise"]) -> AbstractGradientAlgebra:
        """The latents of one draw, with the algebra of gradients taken there."""
        return DenseAlgebra(self, params, noise)

    @property
    def num_params(self) -> int:
        """Number of free parameters."""
        return sum(self.num_leaf_params)

    @property
    def num_leaf_params(self) -> tuple[int, ...]:
        """Number of free parameters of each leaf."""
        return tuple(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(self.init)))

    # Capabilities

    def entropy(self, params: PyTree) -> Float[Array, ""]:
        r"""\(-E \log q_w(Z)\), exactly."""
        raise NotImplementedError(self.refuses(Capability.ENTROPY))

    def mean(self, params: PyTree) -> Float[Array, "latent"]:
        r"""First moment \(E Z\)."""
        raise NotImplementedError(self.refuses(Capability.MOMENTS))

    def variance(self, params: PyTree) -> Float[Array, "latent"]:
        """Variance of each coordinate."""
        raise NotImplementedError(self.refuses(Capability.MOMENTS))

    def covariance_product(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        r"""Rows times the second central moment \(\mathrm{Cov} Z\)."""
        raise NotImplementedError(self.refuses(Capability.MOMENTS))

    def predictor_variance(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row"]:
        r"""Variance \(x^\top \mathrm{Cov}(Z)\, x\) of the predictor of each row."""
        return jnp.sum(self.covariance_product(params, rows) * rows, axis=-1)

    def expected_quadratic(self, params: PyTree, quadratic: Quadratic) -> Float[Array, ""]:
        r"""\(E f(Z)\) of a quadratic, through the first two moments."""
        product = functools.partial(self.covariance_product, params)
        trace = quadratic.curvature.trace_with(self.variance(params), product)
        return quadratic.value(self.mean(params)) + 0.5 * trace

    def gaussian(self, params: PyTree) -> Gaussian:
        """The normal distribution that this is; from a dense covariance, unless the family knows its structure."""
        covariance = self.covariance_product(params, jnp.eye(self.dim, dtype=self.mean(params).dtype))
        return Gaussian(self.mean(params), factor=jnp.linalg.cholesky(covariance))

    @property
    def geometry(self) -> AbstractGeometry:
        """The Fisher metric, and natural-gradient steps in it."""
        raise NotImplementedError(self.refuses(Capability.GEOMETRY))

    def generalized(
        self, params: PyTree, held: PyTree, noise: Float[Array, "noise"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        r"""The latent \(T_w(\epsilon)\) and the log density of its base noise \(\epsilon\), as functions of `params`.

        Args:
            params: \(w\).
            held: equal parameters that are not differentiated; they make \(\epsilon\) of the noise.
            noise: one row of base noise.
        """
        raise NotImplementedError(self.refuses(Capability.GENERALIZED))

    def forward_log_prob(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, ""]:
        r"""\(\log q_w(T_w(\epsilon))\) of the latent that `sample` makes of the noise, by the change of variables."""
        raise NotImplementedError(self.refuses(Capability.FORWARD_DENSITY))

    # Fits that begin with another family

    @property
    def begins_with(self) -> "AbstractFamily | None":
        """A Gaussian family that is fitted first, for `around`; none by default."""
        return None

    def around(self, gaussian: Gaussian) -> "AbstractFamily":
        """This family, with parameters from `init` that are a fitted Gaussian."""
        raise NotImplementedError(f"{type(self).__name__} begins with no other family.")
