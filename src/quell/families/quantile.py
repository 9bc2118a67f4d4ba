# SPDX-License-Identifier: Apache-2.0
"""Sampling through distribution functions: uniform noise, and the logarithm of the gamma quantile."""

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, gammainc, gammaincc, gammaln, ndtri
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

NUM_STEPS = 3
"""From the starts below, two steps leave a relative error of 4e-8 at most, and each step cubes it."""

LONGEST_STEP = 1.0
"""A step multiplies or divides by e at most, so that a bad tangent cannot leave the range of numbers."""

SMALL_SHAPE = 0.3
"""Below this shape the cube of a normal variable is no guide to the quantile any more."""

_sample_grad = jax.jit(jax.lax.random_gamma_grad)


@jax.custom_jvp
@jax.jit
def log_gamma_quantile(shape: Float[Array, "*dims"], u: Float[Array, "*dims"]) -> Float[Array, "*dims"]:
    r"""\(\log x\) where \(P(a, x) = u\) and \(P\) is the distribution function of a gamma variable of rate one.

    Halley's method in \(t = \log x\), on \(\log P\) below the median and on \(\log (1 - P)\) above it: both are
    concave in \(t\) and nearly straight in their tails, and the second derivative comes for free. The logarithm is
    what is returned, because for small shapes the quantile itself is often below the smallest number there is.

    Args:
        shape: \(a > 0\).
        u: strictly between 0 and 1.

    Returns:
        The logarithm of the quantile. Its derivative in the shape is the implicit one, `jax.lax.random_gamma_grad`.

    Cost: three incomplete gamma functions; the derivative costs about one more.

    References: Figurnov, Mohamed & Mnih (2018), section 3.
    """
    is_lower = u < 0.5
    target = jnp.log(jnp.where(is_lower, u, 1.0 - u))
    bound = (jnp.log(u) + gammaln(shape + 1.0)) / shape
    smallest = jnp.finfo(u.dtype).tiny

    def step(_: Int[Array, ""], t: Array) -> Array:
        x = jnp.exp(t)
        log_tail = jnp.log(jnp.maximum(_tail(shape, x, is_lower), smallest))
        slope = jnp.where(is_lower, 1.0, -1.0) * jnp.exp(shape * t - x - gammaln(shape) - log_tail)
        newton = (target - log_tail) / slope
        bend = 0.5 * newton * (shape - x - slope)
        return t + jnp.clip(newton / jnp.maximum(1.0 + bend, 0.5), -LONGEST_STEP, LONGEST_STEP)

    found = jax.lax.fori_loop(0, NUM_STEPS, step, _start(shape, u, bound))
    return jnp.where(_is_tiny(bound), bound, found)


@log_gamma_quantile.defjvp
@jax.jit
def _implicit(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Differentiate `P(shape, x) = u`; where x is tiny, `P = x**shape / gamma(shape + 1)` to rounding."""
    shape, u = primals
    t = log_gamma_quantile(shape, u)
    is_tiny = _is_tiny(t)
    x = jnp.exp(jnp.where(is_tiny, 0.0, t))
    by_shape = jnp.where(is_tiny, (digamma(shape + 1.0) - t) / shape, _sample_grad(shape, x) / x)
    by_u = jnp.exp(gammaln(shape) + jnp.exp(t) - shape * t)
    return t, by_shape * tangents[0] + by_u * tangents[1]


def _tail(shape: Array, x: Array, is_lower: Bool[Array, "..."]) -> Array:
    """The smaller of the two tails; the other one is asked at zero, where it costs nothing."""
    below = gammainc(shape, jnp.where(is_lower, x, 0.0))
    above = gammaincc(shape, jnp.where(is_lower, 0.0, x))
    return jnp.where(is_lower, below, above)


def _start(shape: Array, u: Array, bound: Array) -> Array:
    """Near the quantile: a cubed normal, or for small shapes what the head or the tail of the density gives.

    `bound` is the first term of the series of `log x` and lies below the quantile. In the tail of a small shape the
    density is below that of an exponential variable over `gamma(shape)`, whose quantile is `tail`.
    """
    root = 1.0 - 1.0 / (9.0 * shape) + ndtri(u) / (3.0 * jnp.sqrt(shape))
    cubed = jnp.where(root > 0.1, jnp.log(shape) + 3.0 * jnp.log(jnp.maximum(root, 0.1)), bound)
    tail = -jnp.log1p(-u) - gammaln(shape)
    small = jnp.where(tail > 1.0, jnp.log(jnp.maximum(tail, 1.0)), bound)
    return jnp.maximum(bound, jnp.where(shape > SMALL_SHAPE, cubed, small))


def _is_tiny(t: Array) -> Bool[Array, "..."]:
    return t < jnp.log(jnp.finfo(t.dtype).eps)


def open_uniform(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike) -> Float[Array, "..."]:
    """Uniform numbers that are neither 0 nor 1."""
    tiny = jnp.finfo(dtype).eps / 2
    return jax.random.uniform(key, shape, dtype, minval=tiny, maxval=1.0 - tiny)
