# SPDX-License-Identifier: Apache-2.0
"""Dense algebra of ensembles: best weights and the variance that remains, from covariances alone."""

import numpy as np
from jaxtyping import Bool, Float

from quell.diagnostics.covariance import variance_with

Covariances = Float[np.ndarray, "leaf group joint joint"]
"""For each leaf that has weights of its own (or for all of them together, as one), and each group of draws."""

_SINGULAR = 1e-6


def best_weights(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "variate"]
) -> Float[np.ndarray, "*batch variate"]:
    r"""Weights \(a = -G^{-1} c\) that minimise the variance, of the variates that are kept; zero for the others.

    Each variate is first scaled to unit variance; directions in which the kept ones then vary by less than a millionth
    get no weight, because no number of draws would identify it.
    """
    unit, gram, cross = _scaled(covariances, keep)
    inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
    return -unit * np.einsum("...ij,...j->...i", inverse, cross)


def held_out_variances(
    covariances: Covariances, masks: Bool[np.ndarray, "ensemble variate"]
) -> Float[np.ndarray, "ensemble group"]:
    """Variance that each ensemble leaves in each group of draws, at the best weights for the other groups.

    On the draws that they were made from, weights look better than they are, those of large ensembles more so.
    """
    num_groups = covariances.shape[1]
    others = (covariances.sum(axis=1, keepdims=True) - covariances) / (num_groups - 1)
    left = [variance_with(covariances, best_weights(others, mask)).sum(axis=0) for mask in masks]
    return np.reshape(left, (len(masks), num_groups))


def least_useful_first(covariances: Covariances) -> list[int]:
    r"""The order in which to remove variates one by one (backward elimination), so that the variance grows least.

    At the best weights, removing variate \(k\) of the remaining ones costs \(a_k^2 / (G^{-1})_{kk}\).
    """
    leaves = covariances.mean(axis=1)
    remaining, order = list(range(leaves.shape[-1] - 1)), []
    while remaining:
        rows = [0, *(k + 1 for k in remaining)]
        costs = _removal_costs(leaves[:, rows][:, :, rows]).sum(axis=0)
        order.append(remaining.pop(int(np.argmin(costs))))
    return order


def _removal_costs(covariances: Float[np.ndarray, "leaf joint joint"]) -> Float[np.ndarray, "leaf variate"]:
    num = covariances.shape[-1] - 1
    _, gram, cross = _scaled(covariances, np.ones(num, bool))
    inverse = np.linalg.inv(gram + _SINGULAR * np.eye(num))
    return np.einsum("lij,lj->li", inverse, cross) ** 2 / np.diagonal(inverse, axis1=-2, axis2=-1)


def _scaled(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "variate"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale the kept variates to unit variance; the others, and those whose variance is not finite, become zero."""
    own = np.diagonal(covariances, axis1=-2, axis2=-1)[..., 1:]
    usable = keep & np.isfinite(own) & (own > 0)
    unit = 1.0 / np.sqrt(np.where(usable, own, 1.0)) * usable
    both = usable[..., :, None] & usable[..., None, :]
    gram = unit[..., :, None] * np.where(both, covariances[..., 1:, 1:], 0.0) * unit[..., None, :]
    return unit, gram, unit * np.where(usable, covariances[..., 1:, 0], 0.0)
