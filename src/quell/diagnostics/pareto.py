# SPDX-License-Identifier: Apache-2.0
"""Pareto-smoothed importance sampling, on arrays only."""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

LEAST = 25
"""Least number of ratios, for a tail of five."""

_SMALLEST_TAIL = 5


@dataclasses.dataclass(frozen=True)
class Psis:
    r"""Smoothed importance weights.

    Attributes:
        khat: shape of the tail: moments of the ratios up to \(1/\hat k\) exist. Infinite if the tail is too short
            for a fit, minus infinity if the largest ratios are equal and there is no tail, NaN if a ratio is not a
            number.
        log_weights: normalised, so that their exponentials add up to one.
    """

    khat: float
    log_weights: Float[np.ndarray, "sample"]


def psis(log_ratios: Float[np.ndarray, "sample"], *, resolution: float = 0.0) -> Psis:
    r"""Replace the largest importance ratios by quantiles of a Pareto distribution fitted to them.

    Args:
        log_ratios: \(\log p(z) - \log q(z)\) at samples of \(q\), up to a constant; at least 25 of them.
        resolution: size of the rounding error of a log ratio, below which there is no tail.

    Returns:
        The shape of the tail and the smoothed weights.

    References: Vehtari, Simpson, Gelman, Yao & Gabry (2024), "Pareto smoothed importance sampling", section 2.4.
    """
    if log_ratios.size < LEAST:
        raise ValueError(
            f"`log_ratios` must have at least {LEAST} entries, got {log_ratios.size}; draw more samples, `num=1000`."
        )
    ratios = np.asarray(log_ratios, np.float64)
    largest = ratios.max()
    if not math.isfinite(largest):
        return Psis(math.nan, np.full_like(ratios, np.nan))
    ratios = ratios - largest
    length = math.ceil(min(ratios.size / 5.0, 3.0 * math.sqrt(ratios.size)))
    cutoff = max(float(np.sort(ratios)[-length - 1]), math.log(np.finfo(np.float64).tiny))
    khat, smoothed = _smooth(ratios, cutoff) if -cutoff > resolution else (-math.inf, ratios)
    return Psis(khat, smoothed - np.logaddexp.reduce(smoothed))


def _smooth(ratios: np.ndarray, cutoff: float) -> tuple[float, np.ndarray]:
    """Fit what exceeds the cutoff, and replace it by quantiles, no larger than the largest ratio."""
    places = np.flatnonzero(ratios > cutoff)
    if places.size < _SMALLEST_TAIL:
        return math.inf, ratios
    places = places[np.argsort(ratios[places])]
    khat, scale = _fit_pareto(np.exp(ratios[places]) - math.exp(cutoff))
    if not math.isfinite(khat):
        return khat, ratios
    smoothed = ratios.copy()
    with np.errstate(over="ignore"):  # of a very heavy tail: no weight is larger than the largest ratio
        quantiles = _pareto_quantiles((np.arange(places.size) + 0.5) / places.size, khat, scale)
    smoothed[places] = np.minimum(np.log(quantiles + math.exp(cutoff)), 0.0)
    return khat, smoothed


def _fit_pareto(excess: Float[np.ndarray, "tail"]) -> tuple[float, float]:
    r"""Shape and scale of a generalised Pareto distribution, from sorted values.

    The posterior mean of \(b = -k/\sigma\) under a data-dependent prior, on a grid; the shape is then drawn a little
    towards one half, as ten values would draw it.

    References: Zhang & Stephens (2009), "A new and efficient estimation method for the generalized Pareto
    distribution"; Vehtari et al. (2024), appendix G.
    """
    num = excess.size
    size = 30 + int(math.sqrt(num))
    grid = 1.0 - np.sqrt(size / (np.arange(size) + 0.5))
    grid = grid / (3.0 * excess[int(num / 4 + 0.5) - 1]) + 1.0 / excess[-1]
    shapes = np.log1p(-grid[:, None] * excess).mean(axis=1)
    profile = num * (np.log(-grid / shapes) - shapes - 1.0)
    weights = np.exp(profile - np.logaddexp.reduce(profile))
    weights = np.where(weights >= 10 * np.finfo(np.float64).eps, weights, 0.0)
    mean = float(grid @ weights / weights.sum())
    shape = float(np.log1p(-mean * excess).mean())
    return (num * shape + 5.0) / (num + 10.0), -shape / mean


def _pareto_quantiles(levels: Float[np.ndarray, "tail"], shape: float, scale: float) -> Float[np.ndarray, "tail"]:
    if abs(shape) < np.finfo(np.float64).eps:
        return -scale * np.log1p(-levels)
    return scale * np.expm1(-shape * np.log1p(-levels)) / shape
