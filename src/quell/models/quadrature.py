# SPDX-License-Identifier: Apache-2.0
"""Expectations under one-dimensional normals, with as many nodes as their widths ask for."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

Nodes = tuple[np.ndarray, np.ndarray]
"""Points on the line and their weights under a standard normal."""

NARROW = {"single": 0.5, "double": 0.22}
"""The largest standard deviation for which a few Gauss-Hermite nodes do."""

WIDE = {True: 3.0, False: 2.0}
"""The smallest that needs more nodes than usual, by whether the function is known to be smooth."""

USUAL = {"single": (32, 6.5), "double": (64, 8.0)}
"""Equally spaced nodes: how many, and standard deviations to the last."""

MANY = {
    True: {"single": (80, 6.5), "double": (192, 8.0)},
    False: {"single": (128, 10.5), "double": (256, 13.0)},
}
"""Those for wide normals, by whether the function is smooth; one that is not known to be may grow exponentially."""

NUM_FEW, NUM_COARSE = 8, 10
"""Gauss-Hermite nodes, for narrow normals and where the expectation need not be exact."""


def normal_expectation(
    function: Callable[[Float[Array, "datum node"]], PyTree],
    mean: Float[Array, "datum"],
    scale: Float[Array, "datum"],
    *,
    is_smooth: bool,
    coarse: bool = False,
) -> PyTree:
    r"""\(E\,g_i(m_i + s_i \eta)\) and \(E\,g_i(m_i + s_i \eta)\,\eta\) for each datum, with \(\eta\) a standard normal.

    The widest normal at hand decides for all data: eight Gauss-Hermite nodes, the usual equally spaced ones, or more of
    them that reach further. For a function that is analytic in a strip around the real line the error of equally spaced
    nodes falls exponentially with their number; for a wide normal and a bend as sharp as a logistic one, much faster
    than that of Gauss-Hermite nodes.

    Args:
        function: \(g\), of all data at their nodes; or a tree of such functions, which gives a tree of pairs.
        mean: \(m\).
        scale: \(s\).
        is_smooth: whether \(g\) bends no more sharply than the logistic function and does not grow exponentially.
            Where that is not known, the eight nodes are not used, and those for wide normals sooner.
        coarse: ten Gauss-Hermite nodes whatever the widths, exact for polynomials and to 1e-3 for the logistic up to
            a variance of 4: for an approximation, where what a datum contributes must not depend on the others.

    Bias: expected derivatives of the logistic log-likelihood are exact to 1e-10 up to a variance of 50 and to 1e-8 up
    to 100 in double precision; to 1e-6 and 1e-5 in single precision, and to rounding over \(s\) where that is tiny.
    Those of \(e^t\) are exact to 1e-5 up to 25; from 70 on it overflows at the last node in single precision. Those of
    a function with a kink are off by a few percent.
    Cost: evaluations per datum by the largest \(s\): 8 up to 0.22, 64 up to 3, else 192; in single precision 8 up to
    0.5, 32 up to 3, else 80. Where \(g\) is not known to be smooth: 64 up to 2, else 256; 32 up to 2, else 128.

    References: Trefethen & Weideman (2014), "The exponentially convergent trapezoidal rule", section 5.
    """

    def by(nodes: Nodes) -> Callable[[], PyTree]:
        noise, weights = (jnp.asarray(x, mean.dtype) for x in nodes)
        both = jnp.stack([weights, weights * noise], axis=1)
        return lambda: jax.tree.map(lambda found: found @ both, function(mean[:, None] + scale[:, None] * noise))

    if coarse:
        found = by(gauss_hermite(NUM_COARSE))()
    else:
        widest = largest_of_batch(jax.lax.stop_gradient(jnp.max(scale)))
        precision = _precision(mean.dtype)
        usual, many = (by(equally_spaced(*each[precision])) for each in (USUAL, MANY[is_smooth]))
        choice = (widest > WIDE[is_smooth]).astype(int)
        if is_smooth:
            few = by(gauss_hermite(NUM_FEW))
            found = jax.lax.switch(choice + (widest > NARROW[precision]), (few, usual, many))
        else:
            found = jax.lax.switch(choice, (usual, many))
    return jax.tree.map(lambda pair: (pair[:, 0], pair[:, 1]), found)


def gauss_hermite(number: int) -> Nodes:
    """Nodes that are exact for polynomials of a degree below twice their number."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    return nodes, weights / weights.sum()


def equally_spaced(number: int, reach: float) -> Nodes:
    """Nodes with weights in proportion to the normal density there."""
    nodes = np.linspace(-reach, reach, number)
    density = np.exp(-0.5 * nodes**2)
    return nodes, density / density.sum()


@jax.custom_batching.custom_vmap
def largest_of_batch(value: Float[Array, ""]) -> Float[Array, ""]:
    """The value itself; under `jax.vmap` the largest of the batch, so that a branch on it stays one branch."""
    return value


@largest_of_batch.def_vmap
def _largest_of_batch(
    axis_size: int, in_batched: list[bool], value: Float[Array, "*batch"]
) -> tuple[Float[Array, "*outer"], bool]:
    return largest_of_batch(jnp.max(value, axis=0) if in_batched[0] else value), False


def _precision(dtype: DTypeLike) -> str:
    return "double" if jnp.finfo(dtype).bits > 32 else "single"
