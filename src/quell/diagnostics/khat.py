# SPDX-License-Identifier: Apache-2.0
"""How far the fitted distribution can be trusted: the tail of the importance ratios, with advice."""

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.tiers import tiered_jit
from quell.diagnostics.densities import ScoredSample, joined, sample_size, score_sample
from quell.diagnostics.pareto import LEAST, psis
from quell.evaluation import Problem
from quell.families import AbstractFamily, Capability

_LARGEST_FULL_RANK = 1000

_COARSE = 0.5
"""Nats of rounding in a log density beyond which importance ratios say nothing."""


LARGEST_SHIFT = 0.1
"""Standard deviations that an expectation under the fitted distribution may be off without draws being corrected."""

SIMILAR = 0.9
"""Share of the draws that importance sampling is worth, beyond which the ratios differ so little that the cut of their
tail may lie among typical ones: then more draws decide."""

_MORE_VALUES, _MORE_NUMBERS = 2**30, 2**25
"""Most log-likelihoods of single data, and numbers in the latents, of such draws."""

_UNSEEN = "A mode that no draw reaches cannot be seen."


@dataclasses.dataclass(frozen=True)
class Khat:
    r"""The Pareto shape of the importance ratios \(p(x, z) / q(z)\), with advice.

    Attributes:
        value: \(\hat k\); minus infinity if the largest ratios are all equal, NaN if one is not a number or if all are
            lost in rounding.
        threshold: largest value for which importance sampling with this many samples is reliable.
        num: number of samples.
        advice: what it says about the family, and what to do.
        effective: samples of the posterior that these are worth, as a share of their number.
    """

    value: float
    threshold: float
    num: int
    advice: str
    effective: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the value is within the threshold."""
        return self.value <= self.threshold

    @property
    def is_correctable(self) -> bool:
        r"""Whether importance weights are reliable, and may bring draws nearer to the posterior.

        By Cauchy and Schwarz no expectation is off by more than \((1/e - 1)^{1/2}\) of its standard deviations, where
        \(e\) is the effective share. K-hat itself says how reliable the weights are, and not how much they change.
        """
        return self.is_good and self.effective < 1.0 / (1.0 + LARGEST_SHIFT**2)

    @property
    def is_open(self) -> bool:
        """Whether more draws may come to another verdict: the tail is heavy, and yet the ratios differ little."""
        return self.value > self.threshold and self.effective > SIMILAR

    def __repr__(self) -> str:
        """The value, its threshold and the advice."""
        return f"Khat({self.value:.2f}, good up to {self.threshold:.2f}): {self.advice}"


def khat_threshold(num: int) -> float:
    r"""\(\min(1 - 1/\log_{10} S, 0.7)\) for \(S\) samples.

    References: Vehtari et al. (2024), section 3.2.4.
    """
    return min(1.0 - 1.0 / math.log10(num), 0.7)


def estimate_khat(key: Key[Array, ""], problem: Problem, params: PyTree, *, num: int | None = None) -> Khat:
    """The Pareto shape of the importance ratios at fresh samples of the family.

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: samples, at least 25; by default as many as `telling_sample` takes.

    Cost: an evaluation of the likelihood of all data for each sample, in chunks.
    """
    check_key(key)
    if num is None:
        return khat_of(telling_sample(key, problem, params), problem.family)
    check_count("num", num, least=LEAST)
    return khat_of(score_sample(key, problem, params, num), problem.family)


def telling_sample(key: Key[Array, ""], problem: Problem, params: PyTree) -> ScoredSample:
    r"""As many draws as a verdict takes: 10,000, fewer where data are many, up to 16 times as many where it is open.

    The fit of a skewed posterior matches its low moments, and the ratios are near a cubic \(z^3 - 3z\) in each
    direction, which has a heap of values at \(z = -1\). Where the cut of the tail lies in that heap, k-hat is near one
    whatever the tail; with more draws the cut lies beyond.
    """
    num = sample_size(problem)
    samples = [score_sample(key, problem, params, num)]
    most = min(16, _MORE_VALUES // (num * problem.model.num_data), _MORE_NUMBERS // (num * problem.family.dim))
    while 4 * len(samples) <= most and khat_of(joined(samples), problem.family).is_open:
        keys = (_fold_in(key, np.uint32(number)) for number in range(len(samples), 4 * len(samples)))
        samples += [score_sample(one, problem, params, num) for one in keys]
    return joined(samples)


@tiered_jit
def _fold_in(key: Key[Array, ""], number: Array) -> Key[Array, ""]:
    return jax.random.fold_in(key, number)


def khat_of(sample: ScoredSample, family: AbstractFamily) -> Khat:
    """The Pareto shape of the importance ratios of a sample."""
    ratios = sample.log_ratios
    value, threshold = psis(ratios, resolution=sample.resolution).khat, khat_threshold(ratios.size)
    bad = int(np.sum(np.isnan(ratios) | np.isposinf(ratios)))
    advice = khat_advice(value, threshold, family)
    if not bad and sample.resolution > _COARSE:
        value = math.nan
        advice = (
            f"Log densities are rounded to {sample.resolution:.2g} nats, which hides the importance ratios. Call "
            "`jax.config.update('jax_enable_x64', True)` before the model is made, or centre and scale the data."
        )
    elif bad or math.isnan(value):
        advice = (
            f"The log density is not finite at {bad or ratios.size:,} of {ratios.size:,} samples. Check the model "
            "with `quell.check_model(model)`, or transform its latents to their support."
        )
    effective = 0.0 if math.isnan(value) or value == math.inf else _effective(ratios)
    if value > threshold and effective > SIMILAR:
        advice = (
            "The importance ratios differ little, and yet their tail is heavy: the fitted distribution may miss a part "
            f"of the posterior that few draws reach. See whether `result.khat(num={4 * ratios.size})` agrees. "
            f"{_remedy(family)}"
        )
    return Khat(value, threshold, ratios.size, advice, effective)


def _effective(log_ratios: Float[np.ndarray, "sample"]) -> float:
    """The square of the mean ratio over the mean square."""
    ratios = np.exp(log_ratios - np.max(log_ratios))
    return float(np.mean(ratios) ** 2 / np.mean(ratios**2))


def khat_advice(value: float, threshold: float, family: AbstractFamily) -> str:
    """What a value means for a family, and what to do about it.

    Args:
        value: of the Pareto shape.
        threshold: for the number of samples.
        family: that was fitted.
    """
    if value == -math.inf:
        return f"The largest importance ratios are all equal: as far as the draws can tell, the fit is exact. {_UNSEEN}"
    if value <= min(0.5, threshold):
        return f"The fitted distribution is close to the posterior. {_UNSEEN}"
    if value <= threshold:
        return (
            "The fitted distribution is near the posterior but misses some of its tails, which importance weights can "
            "correct."
        )
    if value <= 1.0:
        return (
            "The fitted distribution misses parts of the posterior: standard deviations are too small, and means may "
            f"be off. {_remedy(family)}"
        )
    return f"The fitted distribution is far from the posterior: do not rely on its moments. {_remedy(family)}"


def _remedy(family: AbstractFamily) -> str:
    dim = family.dim
    richest = dim + dim * (dim + 1) // 2
    if family.refuses(Capability.GAUSSIAN):
        return (
            "If the fit has converged, put correlated latents into one block, such as `quell.FullRank`, or "
            "reparameterize the model."
        )
    if family.num_params >= richest:
        return (
            "If the fit has converged, no Gaussian does better in these coordinates: reparameterize the model, for "
            "example by the logarithm of a positive latent, or in a non-centred form."
        )
    if dim <= _LARGEST_FULL_RANK:
        return f"If the fit has converged, try full rank: `quell.FullRank({dim})`."
    return f"If the fit has converged, try a larger rank: `quell.LowRank({dim}, rank=20)`."
