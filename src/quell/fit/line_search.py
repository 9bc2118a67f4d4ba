# SPDX-License-Identifier: Apache-2.0
"""How much of a Newton step to take: less where it fails, more where it surprises."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from quell.core.trees import all_finite, select
from quell.fit.common_draws import LocalElbo
from quell.fit.trust_region import TrustStep

LEAST_RATIO = 0.1
"""Of the gain of a step to the predicted one; a step below is not taken."""

MOST_TRIALS, LEAST_SHARE, MOST_SHARE = 4, 0.1, 0.5
"""A step that fails is shortened by a share between the last two, so many times; then a new direction is sought."""

SURPRISE, EXTENSION = 1.2, 4.0
"""A step that gains more than predicted by this ratio is made longer, as long as that gains more."""

ROUNDING = 10.0
"""Units of rounding that an increase of the ELBO may be wrong by."""


class Trial(NamedTuple):
    """The best point so far that a step may move to.

    Args:
        share: of the step.
        params: after it.
        there: the ELBO around the point.
        ratio: of its gain to the predicted one.
        is_better: whether the ratio is large enough, and the ELBO finite.
        following: the share to try next; zero for no more trials.
        trials: so far.
    """

    share: Float[Array, ""]
    params: PyTree
    there: LocalElbo
    ratio: Float[Array, ""]
    is_better: Bool[Array, ""]
    following: Float[Array, ""]
    trials: Int[Array, ""]


def line_search(
    along: Callable[[Float[Array, ""]], tuple[PyTree, LocalElbo]],
    params: PyTree,
    here: LocalElbo,
    solved: TrustStep,
    stays: Bool[Array, ""],
    limit: Int[Array, ""],
) -> Trial:
    """Shorten a step until it gains a part of what is predicted, or lengthen it while it gains more than that.

    An evaluation costs less than a new direction.

    Args:
        along: the parameters after a share of the step, and the ELBO there.
        params: before it.
        here: the ELBO before it.
        solved: the step, with its slope and its predicted gain.
        stays: whether no step is taken: the ELBO is evaluated where it starts.
        limit: of trials.
    """
    value = here.value
    # A difference of two sums is as uncertain as rounding leaves it; what is below that is taken on trust.
    floor = ROUNDING * here.rounding
    tiny = jnp.finfo(value.dtype).tiny

    def again(best: Trial) -> Trial:
        share = jnp.where(stays, 0.0, best.following)
        after, there = along(share)
        gain = share * solved.slope + share**2 * (solved.gain - solved.slope)
        ratio = jnp.where(share > 1, best.ratio, (there.value - value + floor) / jnp.maximum(gain + floor, tiny))
        is_finite = all_finite(there._replace(noise=()))
        is_better = is_finite & (ratio > LEAST_RATIO) & (~best.is_better | (there.value > best.there.value))
        bend = (there.value - value - share * solved.slope) / share**2
        optimum = jnp.nan_to_num(-0.5 * solved.slope / bend, nan=0.0)
        least = jnp.where(solved.products > 0, LEAST_SHARE, MOST_SHARE)  # what no model predicted has no optimum
        shorter = jnp.clip(optimum, least * share, MOST_SHARE * share)
        may_extend = (share >= 1) & (solved.products > 0)  # what no model predicted cannot surprise
        longer = jnp.where(is_better & may_extend & (ratio > SURPRISE), EXTENSION * share, 0.0)
        following = jnp.where(is_better | best.is_better, longer, shorter)
        found = Trial(share, after, there, ratio, is_better | best.is_better, following, best.trials + 1)
        kept = select(is_better | ~best.is_better, found, best)
        return kept._replace(following=following, trials=found.trials)

    zero = jnp.zeros_like(value)
    nowhere = jax.tree.map(jnp.zeros_like, here)
    start = Trial(zero, params, nowhere, zero, jnp.asarray(False), jnp.ones_like(value), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda best: (best.following > 0) & (best.trials < limit), again, start)
