# SPDX-License-Identifier: Apache-2.0
"""The weights that make the combined gradient as quiet as the evidence allows."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.combine.moments import Moments
from quell.combine.prior import NormalWishart, posterior


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
        One weight a variate.

    Bias: none, because the weights do not see the current draw.
    Cost: one symmetric eigendecomposition of the size of the ensemble.

    References: Geffner & Domke (2018), theorem 4.2.
    """
    gram, cross = posterior(prior, average, num_samples)
    size = jnp.sqrt(jnp.diagonal(gram))
    unit = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)
    values, basis = jnp.linalg.eigh(unit[:, None] * gram * unit)
    cutoff = 10 * gram.shape[0] * jnp.finfo(gram.dtype).eps
    inverse = jnp.where(values > cutoff, 1.0 / jnp.maximum(values, cutoff), 0.0)
    return -unit * (basis @ (inverse * (basis.T @ (unit * cross))))


def expected_sq_norm(average: Moments, weights: Float[Array, "variate"]) -> Float[Array, ""]:
    r"""\(E\|h + Ca\|^2\) from moments."""
    return average.base + 2.0 * weights @ average.cross + weights @ average.gram @ weights
