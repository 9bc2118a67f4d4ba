# SPDX-License-Identifier: Apache-2.0
"""Draws of the posterior out of draws of the fit, by importance resampling."""

import math

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.tiers import tiered_jit
from quell.diagnostics.densities import ScoredSample, sample_size, score_sample
from quell.diagnostics.khat import Khat
from quell.diagnostics.pareto import psis
from quell.evaluation import Problem
from quell.fit.common_draws import MOST_LOST

OVERSAMPLING, WORTH = 10, 4
"""Draws of the fit for each that is asked for, at least: so that few of them come twice; and draws of the posterior
that they are worth, at least: so that weights add little to the noise."""

LEAST_POOL, LEAST_EFFECTIVE = 1_000, 0.01
"""Draws of the fit for the tail of the weights, and the share of them beyond which no more are taken."""

MOST_NUMBERS = 2**25
"""Log-likelihoods of single data, or coordinates, of draws that are scored unasked: about a second."""

_ORDER = 2**32 - 1
"""Folded into the key for the order of the draws; the draws themselves are of the key."""


def corrected_sample(key: Key[Array, ""], problem: Problem, params: PyTree, num: int, khat: Khat) -> ScoredSample:
    r"""Draws of the posterior, taken out of more draws of the fit by Pareto-smoothed importance weights.

    Systematic resampling, in random order: a draw of weight \(w\) comes \(nw\) times, rounded up or down.

    Args:
        key: for the draws.
        problem: model and family.
        params: of the family.
        num: draws that are asked for.
        khat: of the fit, which decides.

    Bias: that of smoothing the largest weights, which falls with the number of draws of the fit.
    Cost: an evaluation of the likelihood of all data for each draw of the fit: see `pool_size`.

    Raises:
        ValueError: where k-hat is too large for importance weights.

    References: Vehtari, Simpson, Gelman, Yao & Gabry (2024), "Pareto smoothed importance sampling".
    """
    check_key(key)
    check_count("num", num)
    if not khat.is_good:
        raise ValueError(
            f"Corrected draws need a k-hat of at most {khat.threshold:.2f}, got {khat.value:.2f}: {khat.advice} "
            "`result.nuts(key)` draws from the posterior itself."
        )
    sample, weights = _weighted(key, problem, params, pool_size(num, khat))
    if not np.all(np.isfinite(weights)):
        raise ValueError("The log density is not finite at some draws; see `quell.check_model(model)`.")
    order = np.random.default_rng(np.asarray(_order_bits(key)))
    heights = np.cumsum(weights)
    levels = (np.arange(num) + order.random()) / num * heights[-1]
    return sample.taken(order.permutation(np.searchsorted(heights, levels)))


def pool_size(num: int, khat: Khat) -> int:
    """Draws of the fit out of which so many are taken.

    Args:
        num: draws that are asked for.
        khat: of the fit, with the share of its draws that weights leave.
    """
    return max(LEAST_POOL, math.ceil(num * max(OVERSAMPLING, WORTH / max(khat.effective, LEAST_EFFECTIVE))))


def is_quick(problem: Problem, num: int) -> bool:
    """Whether so many draws can be scored unasked."""
    return num * max(problem.model.num_data, problem.family.dim) <= MOST_NUMBERS


@tiered_jit
def _order_bits(key: Key[Array, ""]) -> Array:
    return jax.random.bits(jax.random.fold_in(key, _ORDER), (4,))


def weighted_std(key: Key[Array, ""], problem: Problem, params: PyTree) -> tuple[Float[np.ndarray, "latent"], float]:
    """Standard deviations of the posterior by weighted draws of the fit, and how many draws the weights leave.

    Args:
        key: for the draws.
        problem: model and family.
        params: of the family.
    """
    sample, weights = _weighted(key, problem, params, sample_size(problem))
    latents = np.asarray(sample.latents)
    return np.sqrt(weights @ (latents - weights @ latents) ** 2), float(1 / np.sum(weights**2))


def _weighted(
    key: Key[Array, ""], problem: Problem, params: PyTree, num: int
) -> tuple[ScoredSample, Float[np.ndarray, "sample"]]:
    """Draws of the fit and their smoothed weights, whose sum is one; a few without a density are left out."""
    sample = score_sample(key, problem, params, num)
    ratios = sample.log_ratios
    if np.mean(np.isnan(ratios)) <= MOST_LOST:
        ratios = np.where(np.isnan(ratios), -np.inf, ratios)
    return sample, np.exp(psis(ratios, resolution=sample.resolution).log_weights)
