# SPDX-License-Identifier: Apache-2.0
"""Paired comparisons of runs, and the test that decides a claim from them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.scipy.special import betainc
from jaxtyping import Float

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

LEVEL = 0.01
"""Probability of a wrong verdict on a claim, in either direction."""

FEWEST_RUNS = 5
"""With fewer runs nothing is decided."""

LOST = -1e12
"""Stands for the ELBO of a run that is not finite."""

_TRIM = 0.2


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A claim and its outcome.

    Attributes:
        source: table or figure of the paper.
        claim: in our words.
        outcome: `holds`, `does not hold` or `undecided`.
        evidence: the comparison that decided, or the least certain one.
    """

    source: str
    claim: str
    outcome: str
    evidence: str

    def as_json(self) -> dict[str, Any]:
        """One entry of `verdicts` in a report."""
        return dataclasses.asdict(self)


class Comparison(NamedTuple):
    """One part of a claim: `difference` should be above `-margin`.

    Attributes:
        label: what was compared.
        difference: trimmed mean over pairs.
        error: its standard error.
        margin: what still counts as no difference.
        p_for: p-value of the test of the opposite: small where the data support the part.
        p_against: p-value of the test of the part itself: small where the data contradict it.
    """

    label: str
    difference: float
    error: float
    margin: float
    p_for: float
    p_against: float

    def __str__(self) -> str:
        """The comparison in words."""
        margin = f", where {-self.margin:.2g} would do" if self.margin else ""
        error = f"± {self.error:.2g}" if np.isfinite(self.error) else "(too few runs)"
        size = "all runs lost" if self.difference <= 0.1 * LOST else f"{self.difference:+.3g} {error}"
        return f"{self.label} {size}{margin}"


def decide(source: str, claim: str, parts: Sequence[Comparison]) -> Verdict:
    """Test the parts: all must hold, each at the level; a single part that the data contradict refutes the claim.

    For refutation the level is divided by the number of parts (Bonferroni).
    """
    weakest, worst = max(parts, key=lambda one: one.p_for), min(parts, key=lambda one: one.p_against)
    if worst.p_against < LEVEL / len(parts):
        return Verdict(source, claim, FAILS, f"against it: {worst}")
    if weakest.p_for < LEVEL:
        ties = sum(part.margin > 0 and part.difference < 2 * part.error for part in parts)
        note = f"; {ties} of them show no difference" if ties else ""
        return Verdict(source, claim, HOLDS, f"{_one_of('closest', parts)}: {weakest}{note}")
    return Verdict(source, claim, UNDECIDED, f"{_one_of('least certain', parts)}: {weakest}")


def _one_of(which: str, parts: Sequence[Comparison]) -> str:
    return f"{which} of {len(parts)} comparisons" if len(parts) > 1 else "the one comparison"


def compare(
    label: str, better: Float[np.ndarray, "run"], worse: Float[np.ndarray, "run"], margin: float = 0.0
) -> Comparison | None:
    """Paired comparison of two quantities of the same runs: Yuen's test on the trimmed mean of their differences.

    A fifth of the differences is trimmed at each end, because at large rates a run now and then takes a bad step. A run
    that is not finite counts as a very bad one; pairs in which neither is finite are left out.
    """
    both_lost = ~np.isfinite(better) & ~np.isfinite(worse)
    pairs = [np.where(np.isfinite(side), side, LOST)[~both_lost] for side in (better, worse)]
    ordered = np.sort(pairs[0] - pairs[1])
    num = ordered.size
    if num == 0:
        return None
    cut = int(_TRIM * num)
    kept = ordered[cut : num - cut]
    difference = float(kept.mean())
    if num < FEWEST_RUNS:
        return Comparison(label, difference, float("nan"), margin, 1.0, 1.0)
    winsorised = np.clip(ordered, kept[0], kept[-1])
    error = float(winsorised.std(ddof=1) / ((1 - 2 * cut / num) * np.sqrt(num)))
    above = difference + margin
    if error == 0.0:
        return Comparison(label, difference, error, margin, float(above <= 0), float(above >= 0))
    tail = _t_tail(above / error, kept.size - 1)
    return Comparison(label, difference, error, margin, tail, 1.0 - tail)


def _t_tail(t: float, degrees: int) -> float:
    """Upper tail probability of Student's t distribution."""
    half = 0.5 * float(betainc(degrees / 2, 0.5, degrees / (degrees + t * t)))
    return half if t > 0 else 1.0 - half
