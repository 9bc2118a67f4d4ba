# SPDX-License-Identifier: Apache-2.0
"""The Fisher geometry of a family: what a natural-gradient step needs to know of it."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

LEAST_PRECISION = 1e-3
"""A step multiplies no precision by less than this."""


class AbstractGeometry(eqx.Module):
    r"""The Fisher metric \(F\) of a family, and a way to move along a direction without leaving the family.

    Laws: `sq_norm` is \(g^\top F^{-1} g\), and to first order in the rate `move` adds \(\rho F^{-1} g\); for a geometry
    that damps its solve, both are smaller.
    """

    @property
    def momentum(self) -> float:
        """Nesterov momentum that suits steps in this metric; metrics blind to correlations gain from it."""
        return 0.9

    @abstractmethod
    def direction(self, params: PyTree, grad: PyTree) -> PyTree:
        r"""The natural gradient \(F^{-1} g\), a `NamedTuple` with a field `loc`, in the geometry's own coordinates."""

    @abstractmethod
    def sq_norm(self, params: PyTree, direction: PyTree) -> Float[Array, ""]:
        r"""\(g^\top F^{-1} g\): twice the divergence of a small step with rate one, to second order."""

    @abstractmethod
    def origin(self, params: PyTree) -> PyTree:
        """The coordinates of the parameters themselves in their `chart`: zeros."""

    @abstractmethod
    def chart(self, params: PyTree, at: PyTree) -> PyTree:
        r"""The parameters at some coordinates around others, which have the coordinates zero.

        The chart covers the whole family, is smooth, and at zero the Fisher metric is the identity in it (of a low-rank
        Gaussian nearly so): coordinates of length \(r\) are about \(r^2/2\) nats away.
        """

    @property
    def knows_curvature(self) -> bool:
        """Whether the gradient tells the expected Hessian, as it does in a covariance without constraints."""
        return False

    def leap(self, params: PyTree, grad: PyTree, rate: Float[Array, ""]) -> PyTree:
        """The parameters after a step from a gradient in the chart; only where it `knows_curvature`."""
        raise NotImplementedError(f"A gradient of {type(self).__name__} does not tell the curvature.")

    @abstractmethod
    def move(self, params: PyTree, direction: PyTree, rate: Float[Array, ""], scale_rate: float = 1.0) -> PyTree:
        """The parameters after a step; the rate of all but the location is multiplied by `scale_rate`."""


def least_precision(rate: Float[Array, ""]) -> Float[Array, ""]:
    r"""The least factor of a precision that is taken as it is.

    The precision after a step is \(1-\rho\) times the old one plus \(\rho\) times that of the target. A factor well
    below \(1-\rho\) means that the target's was negative, by noise or because the target is no Gaussian.
    """
    return jnp.maximum(0.5 * (1.0 - rate), LEAST_PRECISION)
