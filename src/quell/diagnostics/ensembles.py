# SPDX-License-Identifier: Apache-2.0
"""Dense algebra of ensembles: best weights and the variance that remains, from covariances alone."""

import numpy as np
from jaxtyping import Bool, Float

from quell.diagnostics.covariance import variance_with

Covariances = Float[np.ndarray, "*leaf group joint joint"]
Masks = Bool[np.ndarray, "ensemble variate"]

_SINGULAR = 1e-6


def best_weights(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "*batch variate"]
) -> Float[np.ndarray, "*batch variate"]:
    r"""Weights \(a = -G^{-1} c\) that minimise the variance, of the variates that are kept; zero for the others.

    Each variate is first scaled to unit variance; directions in which the kept ones then vary by less than a millionth
    get no weight, because no number of draws would identify it.
    """
    unit, gram, cross = _scaled(covariances, keep)
    inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
    return -unit * np.einsum("...ij,...j->...i", inverse, cross)


def held_out_variances(covariances: Covariances, masks: Masks) -> Float[np.ndarray, "ensemble group"]:
    """Variance that each ensemble leaves in each group of draws, at the best weights for the other groups.

    On the draws that they were made from, weights look better than they are, those of large ensembles more so. Leaves
    have weights of their own, and their variances are added up.
    """
    if covariances.ndim == 4:
        return np.sum([held_out_variances(leaf, masks) for leaf in covariances], axis=0)
    num = covariances.shape[0]
    others = (covariances.sum(axis=0) - covariances) / (num - 1)
    left = []
    for mask in masks:
        weights = best_weights(others, np.broadcast_to(mask, (num, mask.size)))
        left.append(variance_with(covariances, weights))
    return np.stack(left) if left else np.zeros((0, num))


def least_useful_first(covariance: Float[np.ndarray, "*leaf joint joint"]) -> list[int]:
    r"""The order in which to remove variates one by one (backward elimination), so that the variance grows least.

    At the best weights, removing variate \(k\) of the remaining ones costs \(a_k^2 / (G^{-1})_{kk}\).
    """
    leaves = covariance.reshape(-1, *covariance.shape[-2:])
    remaining = list(range(covariance.shape[-1] - 1))
    order = []
    while remaining:
        rows = [0, *(k + 1 for k in remaining)]
        costs = np.sum([_removal_costs(leaf[np.ix_(rows, rows)]) for leaf in leaves], axis=0)
        order.append(remaining.pop(int(np.argmin(costs))))
    return order


def _removal_costs(covariance: Float[np.ndarray, "joint joint"]) -> Float[np.ndarray, "variate"]:
    _, gram, cross = _scaled(covariance, np.ones(covariance.shape[0] - 1, bool))
    inverse = np.linalg.inv(gram + _SINGULAR * np.eye(cross.size))
    return (inverse @ cross) ** 2 / np.diagonal(inverse)


def _scaled(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "*batch variate"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale the kept variates to unit variance; the others, and those whose variance is not finite, become zero."""
    own = np.diagonal(covariances, axis1=-2, axis2=-1)[..., 1:]
    usable = keep & np.isfinite(own) & (own > 0)
    unit = 1.0 / np.sqrt(np.where(usable, own, 1.0)) * usable
    both = usable[..., :, None] & usable[..., None, :]
    gram = unit[..., :, None] * np.where(both, covariances[..., 1:, 1:], 0.0) * unit[..., None, :]
    return unit, gram, unit * np.where(usable, covariances[..., 1:, 0], 0.0)
