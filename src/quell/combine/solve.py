# SPDX-License-Identifier: Apache-2.0
"""The weights that minimise the expected squared norm of the combined gradient."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from quell.combine.moments import Moments
from quell.combine.prior import NormalWishart, posterior

_MARGIN = 10.0
"""A pivot of the Cholesky decomposition that is this many times the cutoff is no accident of rounding."""


def solve(prior: NormalWishart, average: Moments, num_samples: float | Float[Array, ""]) -> Float[Array, "variate"]:
    r"""Minimise the expected squared norm of \(h + Ca\) under the posterior.

    \(a = -(P/M + \overline{C^\top C})^{-1}(p/M + \overline{C^\top h})\). With a zero prior this is the
    empirical optimum of lemma 4.1; where the matrix is singular (duplicate or vanishing variates), the
    solution of least norm after scaling each variate to norm one.

    Args:
        prior: \(P\) and \(p\).
        average: of moments that must predate the draw being weighted.
        num_samples: \(M\).

    Returns:
        One weight per variate.

    Bias: none, because the weights do not see the current draw.
    Cost: a division for one variate, else a Cholesky decomposition of the size of the ensemble; where the matrix is
    singular, a symmetric eigendecomposition.

    References: Geffner & Domke (2018), theorem 4.2.
    """
    gram, cross = posterior(prior, average, num_samples)
    size = jnp.sqrt(jnp.diagonal(gram))
    unit = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)
    if cross.shape[0] == 1:
        return -unit * unit * cross
    matrix, right = unit[:, None] * gram * unit, -unit * cross
    root = jnp.linalg.cholesky(matrix)
    smallest = jnp.min(jnp.diagonal(root)) ** 2  # at least the smallest eigenvalue; NaN where there is no root
    is_regular = smallest > _MARGIN * _cutoff(matrix)
    return unit * jax.lax.cond(is_regular, _regular, _least_norm, matrix, root, right)


def _regular(
    matrix: Float[Array, "variate variate"], root: Float[Array, "variate variate"], right: Float[Array, "variate"]
) -> Float[Array, "variate"]:
    return cho_solve((root, True), right)


def _least_norm(
    matrix: Float[Array, "variate variate"], root: Float[Array, "variate variate"], right: Float[Array, "variate"]
) -> Float[Array, "variate"]:
    values, basis = jnp.linalg.eigh(matrix)
    cutoff = _cutoff(matrix)
    inverse = jnp.where(values > cutoff, 1.0 / jnp.maximum(values, cutoff), 0.0)
    return basis @ (inverse * (basis.T @ right))


def _cutoff(matrix: Float[Array, "variate variate"]) -> float:
    """Eigenvalues below are taken for zero."""
    return 10 * matrix.shape[0] * float(jnp.finfo(matrix.dtype).eps)


def expected_sq_norm(average: Moments, weights: Float[Array, "*leaf variate"]) -> Float[Array, ""]:
    r"""\(E\|h + Ca\|^2\) from moments, summed over leaves where there are several."""
    cross = jnp.einsum("...k,...k->...", weights, average.cross)
    gram = jnp.einsum("...k,...kl,...l->...", weights, average.gram, weights)
    return jnp.sum(average.base + 2.0 * cross + gram)
