# SPDX-License-Identifier: Apache-2.0
"""Priors over the flat latent."""

import math
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.core.checks import check_positive
from quell.models.quadratic import DiagonalCurvature, Quadratic


class AbstractPrior(eqx.Module):
    """A log density of the flat latent."""

    @abstractmethod
    def log_prob(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """Log density at `z`."""

    @abstractmethod
    def quadratic(self, like: Float[Array, "latent"]) -> Quadratic | None:
        """The log density as a quadratic with the shape and dtype of `like`; `None` if it is not one."""


class NormalPrior(AbstractPrior):
    """Independent normal priors with one mean and one standard deviation for all coordinates.

    Args:
        loc: the mean.
        scale: the standard deviation.
    """

    loc: float = 0.0
    scale: float = 1.0

    def __check_init__(self) -> None:
        """Refuse a scale that is not positive, or a mean that is not finite."""
        check_positive("scale", self.scale)
        if not math.isfinite(self.loc):
            raise ValueError(f"`loc` must be finite, got {self.loc}.")

    def log_prob(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        constant = -z.shape[0] * (math.log(self.scale) + 0.5 * math.log(2 * math.pi))
        return constant - 0.5 * jnp.sum(((z - self.loc) / self.scale) ** 2)

    def quadratic(self, like: Float[Array, "latent"]) -> Quadratic | None:
        center = jnp.full_like(like, self.loc)
        curvature = DiagonalCurvature(jnp.full_like(like, -1.0 / self.scale**2))
        return Quadratic(center, self.log_prob(center), jnp.zeros_like(like), curvature)


class FunctionPrior(AbstractPrior):
    """A prior given as a function of the flat latent; nothing more is known about it."""

    function: Callable[[Array], Array]

    def log_prob(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        return self.function(z)

    def quadratic(self, like: Float[Array, "latent"]) -> Quadratic | None:
        return None
