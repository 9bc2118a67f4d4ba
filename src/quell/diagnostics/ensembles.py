# SPDX-License-Identifier: Apache-2.0
"""Dense algebra of ensembles: their best weights and what is left of the variance, from covariances alone."""

import numpy as np
from jaxtyping import Bool, Float

from quell.diagnostics.noise import variance_with

Covariances = Float[np.ndarray, "*leaf group joint joint"]
Masks = Bool[np.ndarray, "ensemble variate"]

_SINGULAR = 1e-6


def best_weights(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "*batch variate"]
) -> Float[np.ndarray, "*batch variate"]:
    r"""Weights \(a = -G^{-1} c\) of the variates that are kept, zero for the others.

    Each variate is scaled to variance one first; directions in which the kept ones then vary by less than a
    millionth are left alone, since no number of draws would tell their weights.
    """
    unit, gram, cross = _scaled(covariances, keep)
    inverse = np.linalg.pinv(gram, rcond=_SINGULAR, hermitian=True)
    return -unit * np.einsum("...ij,...j->...i", inverse, cross)


def held_out_variances(covariances: Covariances, masks: Masks) -> Float[np.ndarray, "ensemble group"]:
    """Variance left by each ensemble in each group of draws, with the weights that are best for the other groups.

    Weights that were judged on the draws they were made from would look better than they are, and large ensembles more
    so than small ones. Leaves have weights of their own, and their variances are added up.
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
    r"""The order in which to leave variates out, one by one, so that the variance grows least.

    Leaving out variate \(k\) of the remaining ones costs \(a_k^2 / (G^{-1})_{kk}\) where all weights are the best ones.
    """
    leaves = covariance.reshape(-1, *covariance.shape[-2:])
    remaining = list(range(covariance.shape[-1] - 1))
    order = []
    while remaining:
        rows = [0, *(k + 1 for k in remaining)]
        costs = np.sum([_drop_one_costs(leaf[np.ix_(rows, rows)]) for leaf in leaves], axis=0)
        order.append(remaining.pop(int(np.argmin(costs))))
    return order


def _drop_one_costs(covariance: Float[np.ndarray, "joint joint"]) -> Float[np.ndarray, "variate"]:
    _, gram, cross = _scaled(covariance, np.ones(covariance.shape[0] - 1, bool))
    inverse = np.linalg.inv(gram + _SINGULAR * np.eye(cross.size))
    return (inverse @ cross) ** 2 / np.diagonal(inverse)


def _scaled(
    covariances: Float[np.ndarray, "*batch joint joint"], keep: Bool[np.ndarray, "*batch variate"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale the kept variates to variance one; the others, and those whose variance is not finite, become zero."""
    own = np.diagonal(covariances, axis1=-2, axis2=-1)[..., 1:]
    usable = keep & np.isfinite(own) & (own > 0)
    unit = 1.0 / np.sqrt(np.where(usable, own, 1.0)) * usable
    both = usable[..., :, None] & usable[..., None, :]
    gram = unit[..., :, None] * np.where(both, covariances[..., 1:, 1:], 0.0) * unit[..., None, :]
    return unit, gram, unit * np.where(usable, covariances[..., 1:, 0], 0.0)
