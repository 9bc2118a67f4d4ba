# SPDX-License-Identifier: Apache-2.0
"""Log-likelihoods of one datum as functions of its linear predictor."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LogDensity = Callable[[Array, Array], Array]
r"""\(\log p(y \mid t)\) of the predictor and the target."""

ExpectedLogDensity = Callable[[Array, Array, Array], Array]
"""Its expectation under a normal predictor, of mean, variance and target."""

SINGLE_TERMS, DOUBLE_TERMS = 7, 16
"""Of the series of `log_sigmoid`, in single and in double precision: what is left out is below rounding."""

QuadraticBound = Callable[[Array, Array], tuple[Array, Array, Array]]
"""Value, slope and curvature at the mean of a quadratic below it, of mean and variance."""


@jax.custom_jvp
def log_sigmoid(predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    r"""Log-likelihood of a label folded into the features; the target is ignored.

    \(\min(t, 0) - \log(1 + e)\) with \(e = \exp(-|t|)\). The logarithm is \(2\,\mathrm{artanh}\,(e/(2+e))\) by its
    series, whose argument is at most a third: sums and products, of which a processor does several at once. With the
    compiler's logarithm all of it takes about twice as long.
    """
    ratio = (small := jnp.exp(-jnp.abs(predictor))) / (2.0 + small)
    square, series = ratio**2, 0.0
    for power in reversed(range(DOUBLE_TERMS if predictor.dtype == jnp.float64 else SINGLE_TERMS)):
        series = series * square + 1.0 / (2 * power + 1)
    return jnp.minimum(predictor, 0.0) - 2.0 * ratio * series


@log_sigmoid.defjvp
def _log_sigmoid_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Smooth at zero, where the derivative of an absolute value is not."""
    return log_sigmoid(*primals), jax.nn.sigmoid(-primals[0]) * tangents[0]


def jaakkola_jordan(
    mean: Float[Array, "datum"], variance: Float[Array, "datum"]
) -> tuple[Float[Array, "datum"], Float[Array, "datum"], Float[Array, "datum"]]:
    r"""The bound of `log_sigmoid` that touches it at \(\pm\xi\), with \(\xi^2 = E t^2\)."""
    touch = jnp.sqrt(mean**2 + variance)
    rate = bound_rate(touch)
    return lower_bound(mean, touch), 0.5 - 2.0 * rate * mean, -2.0 * rate


def lower_bound(predictor: Float[Array, "*datum"], touch: Float[Array, "*datum"]) -> Float[Array, "*datum"]:
    r"""The quadratic in the predictor that lies below \(\log\sigma\) and touches it at plus and minus `touch`."""
    constant = jax.nn.log_sigmoid(touch) - 0.5 * touch
    return constant + 0.5 * predictor - bound_rate(touch) * (predictor**2 - touch**2)


def bound_rate(touch: Float[Array, "*datum"]) -> Float[Array, "*datum"]:
    r"""\(\lambda(\xi) = \tanh(\xi/2) / (4\xi)\), and its limit \(1/8\) at zero."""
    is_zero = touch == 0
    safe = jnp.where(is_zero, 1.0, touch)
    return jnp.where(is_zero, 0.125, jnp.tanh(0.5 * safe) / (4.0 * safe))


def poisson(predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """Poisson log-likelihood with a log link."""
    return target * predictor - jnp.exp(predictor) - jax.lax.lgamma(target + 1.0)


def expected_poisson(mean: Float[Array, ""], variance: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
    """Its expectation under a normal predictor, from the mean of a log-normal."""
    return target * mean - jnp.exp(mean + 0.5 * variance) - jax.lax.lgamma(target + 1.0)


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Normal log-likelihood with known noise."""

    noise: float

    def __call__(self, predictor: Float[Array, ""], target: Float[Array, ""]) -> Float[Array, ""]:
        """Log density of the target around the predictor."""
        constant = math.log(self.noise) + 0.5 * math.log(2 * math.pi)
        return -0.5 * ((target - predictor) / self.noise) ** 2 - constant
