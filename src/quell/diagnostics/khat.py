# SPDX-License-Identifier: Apache-2.0
"""How far the fitted distribution can be trusted: the tail of the importance ratios, and what to do about it."""

import dataclasses
import math

import numpy as np
from jaxtyping import Array, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.diagnostics.densities import ScoredSample, score_sample
from quell.diagnostics.pareto import LEAST, psis
from quell.evaluation import Problem
from quell.families import AbstractFamily, Capability

_LARGEST_FULL_RANK = 1000


@dataclasses.dataclass(frozen=True)
class Khat:
    r"""The Pareto shape of the importance ratios \(p(x, z) / q(z)\), with advice.

    Attributes:
        value: \(\hat k\); minus infinity where the largest ratios are all equal, NaN where one is not a number.
        threshold: up to here importance weighting of this many samples works.
        num: samples.
        advice: what it says about the family, and what to do.
    """

    value: float
    threshold: float
    num: int
    advice: str

    @property
    def is_good(self) -> bool:
        """Whether the value is within the threshold."""
        return self.value <= self.threshold

    def __repr__(self) -> str:
        """The value, its limit and the advice."""
        return f"Khat({self.value:.2f}, good up to {self.threshold:.2f}): {self.advice}"


def khat_threshold(num: int) -> float:
    r"""\(\min(1 - 1/\log_{10} S, 0.7)\) for \(S\) samples.

    References: Vehtari et al. (2024), section 3.2.4.
    """
    return min(1.0 - 1.0 / math.log10(num), 0.7)


def estimate_khat(key: Key[Array, ""], problem: Problem, params: PyTree, *, num: int = 1000) -> Khat:
    """The Pareto shape at fresh samples of the family.

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: samples, at least 25.

    Cost: `num` evaluations of the likelihood of all data, in chunks.
    """
    check_key(key)
    check_count("num", num, least=LEAST)
    return khat_of(score_sample(key, problem, params, num), problem.family)


def khat_of(sample: ScoredSample, family: AbstractFamily) -> Khat:
    """Smooth the importance ratios of a sample and read the shape of their tail."""
    ratios = sample.log_ratios
    value, threshold = psis(ratios, resolution=sample.resolution).khat, khat_threshold(ratios.size)
    bad = int(np.sum(np.isnan(ratios) | np.isposinf(ratios)))
    advice = khat_advice(value, threshold, family)
    if bad or math.isnan(value):
        advice = (
            f"The log density is not finite at {bad or ratios.size:,} of {ratios.size:,} samples. Check the model "
            "with `quell.check_model(model)`, or keep its latents within their range by a transformation."
        )
    return Khat(value, threshold, ratios.size, advice)


def khat_advice(value: float, threshold: float, family: AbstractFamily) -> str:
    """Say what a value means for a family, and what to do about it.

    Args:
        value: of the Pareto shape.
        threshold: for the number of samples.
        family: that was fitted.
    """
    if value == -math.inf:
        return "The largest importance ratios are all equal: as far as the samples can tell, nothing is missed."
    if value <= min(0.5, threshold):
        return "The fitted distribution is close to the posterior."
    if value <= threshold:
        return (
            "The fitted distribution is near the posterior but misses some of its tails. Means and spreads can be "
            "corrected by importance weighting; the samples and their densities are in `to_arviz`."
        )
    if value <= 1.0:
        return (
            "The family is too narrow: it misses parts of the posterior, so that spreads are too small and means may "
            f"be off. {_way_out(family)}"
        )
    return f"The fitted distribution is far from the posterior: do not rely on its spreads. {_way_out(family)}"


def _way_out(family: AbstractFamily) -> str:
    dim = family.dim
    richest = dim + dim * (dim + 1) // 2
    if family.refuses(Capability.GAUSSIAN):
        return (
            "If the fit had converged, put latents that depend on each other into one block, such as "
            "`quell.FullRank`, or change the coordinates of the model."
        )
    if family.num_params >= richest:
        return (
            "If the fit had converged, no Gaussian does better in these coordinates: change them, for example to "
            "the logarithm of what is positive, or to a non-centred form."
        )
    if dim <= _LARGEST_FULL_RANK:
        return f"If the fit had converged, try full rank: `quell.FullRank({dim})`."
    return f"If the fit had converged, try a larger rank: `quell.LowRank({dim}, rank=20)`."
