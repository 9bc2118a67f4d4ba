# SPDX-License-Identifier: Apache-2.0
"""The mean-field Gaussian: independent coordinates."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_positive
from quell.families.base import AbstractFamily, Capability
from quell.families.coordinate_blocks import AbstractBlockAlgebra, DenseBlock, Start, block_of
from quell.families.factored import Exact, FactoredGradient, Path
from quell.families.gaussian import Gaussian
from quell.families.location_scale import LocationScale, constant, diagonal_from, standard_log_prob, standard_normal
from quell.families.mean_field_geometry import MeanFieldGeometry
from quell.families.transport import DIAGONAL, MIRRORED, AbstractTransport
from quell.models.quadratic import Quadratic, squares_in_rows


class MeanField(AbstractFamily):
    r"""Gaussian with independent coordinates, \(z = \mu + \sigma \odot \epsilon\).

    Transports: `DIAGONAL`, as above, and `MIRRORED`, \(z = \mu - \sigma \odot \epsilon\).

    Args:
        dim: length of the latent.
        log_scale: store \(\log\sigma\) (the default) or \(\sigma\) as it is (the paper).
        init_scale: the scale that `init` starts from; a small one suits most models, because a wide start visits
            latents where the likelihood, and so the gradient, is extreme.

    Example:
        >>> import quell
        >>> quell.MeanField(3)
        MeanField(dim=3)
    """

    dim: int
    log_scale: bool = True
    init_scale: float = 0.1

    def __check_init__(self) -> None:
        """Refuse a dimension or a scale that is not positive."""
        check_count("dim", self.dim)
        check_positive("init_scale", self.init_scale)

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            {
                *(Capability.ENTROPY, Capability.MOMENTS, Capability.GAUSSIAN),
                *(Capability.GEOMETRY, Capability.NATURAL_METRIC),
            }
        )

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        return DIAGONAL, MIRRORED

    def init(self, *, dtype: DTypeLike | None = None) -> LocationScale:
        start = math.log(self.init_scale) if self.log_scale else self.init_scale
        return LocationScale(*(constant(value, (self.dim,), dtype) for value in (0.0, start)))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample latent"]:
        return standard_normal(key, num, self.dim, dtype)

    def sample(self, params: PyTree, noise: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return params.loc + noise * diagonal_from(params.scale, log_scale=self.log_scale).value

    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        scale = diagonal_from(params.scale, log_scale=self.log_scale).value
        white = (z - params.loc) / scale
        constant = 0.5 * self.dim * math.log(2 * math.pi)
        return -constant - jnp.sum(jnp.log(jnp.abs(scale))) - 0.5 * white @ white

    def entropy(self, params: PyTree) -> Float[Array, ""]:
        scale = diagonal_from(params.scale, log_scale=self.log_scale).value
        return 0.5 * self.dim * (1.0 + math.log(2 * math.pi)) + jnp.sum(jnp.log(jnp.abs(scale)))

    def mean(self, params: PyTree) -> Float[Array, "latent"]:
        return params.loc

    def variance(self, params: PyTree) -> Float[Array, "latent"]:
        return diagonal_from(params.scale, log_scale=self.log_scale).value ** 2

    def covariance_product(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        return rows * self.variance(params)

    def predictor_variance(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row"]:
        return squares_in_rows(rows, self.variance(params))

    def gaussian(self, params: PyTree) -> Gaussian:
        return Gaussian(self.mean(params), variance=self.variance(params))

    @property
    def geometry(self) -> MeanFieldGeometry:
        return MeanFieldGeometry(self.log_scale)

    def algebra(self, params: PyTree, noise: Float[Array, "sample latent"]) -> "MeanFieldAlgebra":
        return MeanFieldAlgebra(self, params, noise)


class MeanFieldAlgebra(AbstractBlockAlgebra):
    """Gradients of a mean-field Gaussian: a path is one vector per replicate, and its scale part is never kept.

    Args:
        family: that was drawn from.
        params: of the family.
        noise: of the draw.
        units: factors of dense gradients, for another metric.
    """

    def __init__(
        self,
        family: MeanField,
        params: LocationScale,
        noise: Float[Array, "sample latent"],
        units: LocationScale | None = None,
    ) -> None:
        """Keep the noise and read the scale from the parameters."""
        self.family, self.params, self.noise, self.units = family, params, noise, units
        self.scale, self.slope = diagonal_from(params.scale, log_scale=family.log_scale)

    @property
    def num_coordinates(self) -> int:
        return self.family.dim

    @property
    def numbers_per_coordinate(self) -> int:
        return 2 * self.noise.shape[0]

    def latents(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        return self.params.loc + self._noise(transport) * self.scale

    def log_probs(self, transport: AbstractTransport) -> Float[Array, "sample"]:
        return standard_log_prob(self.noise) - jnp.sum(jnp.log(jnp.abs(self.scale)))

    def log_prob_grads(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        return -self._noise(transport) / self.scale

    def score(self, weight: Float[Array, "sample"], transport: AbstractTransport) -> FactoredGradient:
        path = Path(transport, -weight[:, None] * self.log_prob_grads(transport))
        return FactoredGradient((path,), (Exact(self._minus_log_scale_grad(), weight),))

    def entropy_grad(self) -> FactoredGradient:
        return -FactoredGradient.from_exact(self._minus_log_scale_grad())

    def expected_quadratic_grad(self, quadratic: Quadratic, *, per_sample: bool) -> FactoredGradient:
        def grad(one: Quadratic) -> LocationScale:
            return LocationScale(one.grad(self.params.loc), one.curvature.diagonal() * self.scale * self.slope)

        if per_sample:
            return FactoredGradient(dense=jax.vmap(grad)(quadratic))
        return FactoredGradient.from_exact(grad(quadratic))

    def dense_block(self, gradient: FactoredGradient) -> DenseBlock:
        def block(start: Start, size: int) -> LocationScale:
            noise, slope = block_of((self.noise, self.slope), start, size)
            total = LocationScale(jnp.zeros_like(noise), jnp.zeros_like(noise))
            for path in block_of(gradient.paths, start, size):
                scale = path.cotangent * _turned(noise, path.transport) * slope
                total = jax.tree.map(jnp.add, total, LocationScale(path.cotangent, scale))
            for exact in gradient.exacts:
                value = block_of(exact.value, start, size)
                weight = jnp.ones(noise.shape[0], noise.dtype) if exact.weight is None else exact.weight
                total = jax.tree.map(lambda t, v, w=weight: t + w[:, None] * v, total, value)
            if gradient.dense is not None:
                total = jax.tree.map(jnp.add, total, block_of(gradient.dense, start, size))
            return total if self.units is None else jax.tree.map(jnp.multiply, total, block_of(self.units, start, size))

        return block

    def pullback(self, gradient: FactoredGradient) -> LocationScale:
        total = LocationScale(jnp.zeros_like(self.scale), jnp.zeros_like(self.scale))
        for path in gradient.paths:
            scale = self.slope * jnp.mean(path.cotangent * self._noise(path.transport), axis=0)
            total = jax.tree.map(jnp.add, total, LocationScale(jnp.mean(path.cotangent, axis=0), scale))
        for exact in gradient.exacts:
            weight = 1.0 if exact.weight is None else jnp.mean(exact.weight)
            total = jax.tree.map(lambda t, v, w=weight: t + w * v, total, exact.value)
        if gradient.dense is not None:
            total = jax.tree.map(lambda t, leaf: t + jnp.mean(leaf, axis=0), total, gradient.dense)
        return total if self.units is None else jax.tree.map(jnp.multiply, total, self.units)

    def whitened(self, gradients: Sequence[FactoredGradient]) -> tuple["MeanFieldAlgebra", list[FactoredGradient]]:
        units = LocationScale(self.scale, math.sqrt(0.5) * self.scale / self.slope)
        return MeanFieldAlgebra(self.family, self.params, self.noise, units), list(gradients)

    def _noise(self, transport: AbstractTransport) -> Float[Array, "sample latent"]:
        return _turned(self.noise, transport)

    def _minus_log_scale_grad(self) -> LocationScale:
        return LocationScale(jnp.zeros_like(self.scale), -self.slope / self.scale)


def _turned(noise: Float[Array, "sample latent"], transport: AbstractTransport) -> Float[Array, "sample latent"]:
    return -noise if transport == MIRRORED else noise
