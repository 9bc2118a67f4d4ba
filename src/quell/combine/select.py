# SPDX-License-Identifier: Apache-2.0
"""Which variates pay for themselves: noise from moments, time from measurements."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_EXHAUSTIVE = 10
"""Up to this many variates all subsets are tried; above it the best one is added again and again."""

RIDGE = 1e-6
"""Of a variate's own squared norm: keeps duplicates from being weighed against each other."""


class Costs(NamedTuple):
    """Measured seconds of a step.

    Args:
        base: of the base gradient alone.
        extra: that each variate adds.
        more: that one more set of samples adds to the base gradient.
    """

    base: float
    extra: tuple[float, ...]
    more: float


class Option(NamedTuple):
    """One way to make a gradient.

    Args:
        members: numbers of the variates.
        samples: how many times the samples.
        noise: expected squared distance of the gradient from its mean.
        seconds: of a step.
        effort: seconds times the noise that has to be averaged out: in proportion to the time to converge.
    """

    members: tuple[int, ...]
    samples: int
    noise: float
    seconds: float
    effort: float


def options(
    joint: Float[np.ndarray, "joint joint"],
    mean_sq: float,
    costs: Costs,
    *,
    floor: float,
    samples: Sequence[int] = (1,),
    also: Sequence[tuple[int, ...]] = (),
) -> list[Option]:
    r"""All ways to combine the variates, best first.

    With the best weights the gradient of a subset \(S\) has \(E\|\hat g_S\|^2 = E\|h\|^2 - c_S^\top G_S^{-1} c_S\), one
    small solve; \(m\) times the samples divide what is noise in it by \(m\). Time to converge is in proportion to the
    seconds of a step times the noise, until the noise no longer matters: \(\text{effort} = t\,(v + \text{floor})\).

    Args:
        joint: moments of base gradient (row and column 0) and variates; of gradients that are averages over the samples
            of a step.
        mean_sq: squared norm of the gradient itself, which no variate can take away.
        costs: of a step.
        floor: noise below which a quieter gradient gains nothing.
        samples: how many times the samples of a step may be taken.
        also: subsets that must be among the options.

    Returns:
        Options, the one with the least effort first; the base gradient alone is always among them.
    """
    num = joint.shape[0] - 1
    found = []
    for members in dict.fromkeys([*_subsets(joint, num), *also]):
        noise = max(subset_sq_norm(joint, members) - mean_sq, 0.0)
        seconds = costs.base + sum(costs.extra[k] for k in members)
        for times in samples:
            longer = seconds + (times - 1) * costs.more * seconds / costs.base
            found.append(Option(members, times, noise / times, longer, longer * (noise / times + floor)))
    return sorted(found, key=lambda option: option.effort)


def subset_sq_norm(joint: Float[np.ndarray, "joint joint"], members: Sequence[int]) -> float:
    r"""\(E\|h + C_S a\|^2\) at the best weights of a subset."""
    rows = 1 + np.array(members, int)
    gram, cross = joint[np.ix_(rows, rows)].astype(float), joint[rows, 0].astype(float)
    size = np.sqrt(np.maximum(np.diagonal(gram), 0.0))
    unit = np.where(size > 0, 1.0 / np.where(size > 0, size, 1.0), 0.0)
    scaled = unit[:, None] * gram * unit + RIDGE * np.eye(len(rows))
    return float(joint[0, 0] - (unit * cross) @ np.linalg.solve(scaled, unit * cross))


def _subsets(joint: Float[np.ndarray, "joint joint"], num: int) -> list[tuple[int, ...]]:
    if num <= MOST_EXHAUSTIVE:
        return [members for size in range(num + 1) for members in itertools.combinations(range(num), size)]
    found: list[tuple[int, ...]] = [()]
    while len(found) <= num:
        rest = [k for k in range(num) if k not in found[-1]]
        best = min(rest, key=lambda k: subset_sq_norm(joint, (*found[-1], k)))
        found.append((*found[-1], best))
    return found
