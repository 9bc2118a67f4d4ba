# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each held against our runs: it holds, it does not hold, or it is undecided."""

import dataclasses
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from quell.paper.figure1 import Figure1
from quell.paper.figure4 import SAMPLE_SIZES, STRENGTHS, Panel
from quell.paper.protocol import V0
from quell.paper.sweep import COLUMNS, LEARNING_RATES, SHOWN, Sweep
from quell.paper.table1 import Cell

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
SURE = 3.0
"""Standard errors that a difference must be away from the line to count."""

GROWING = ("none", "S4", "S5", "S6", "S7")
"""The paper's ensembles, each within the next."""

TIE = 1.0
"""Nats by which a larger ensemble may stay behind and still do no harm."""

_RESAMPLES = 500


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A claim and what became of it.

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
    """A claim's part: `difference` should be above `-margin`.

    Attributes:
        label: what was compared.
        difference: median over runs with the same draws.
        error: its standard error, by resampling the runs; NaN for a single run.
        margin: what still counts as no difference.
    """

    label: str
    difference: float
    error: float
    margin: float = 0.0

    @property
    def certainty(self) -> float:
        """Standard errors above the line; negative below it."""
        if not np.isfinite(self.error):
            return 0.0
        above = self.difference + self.margin
        return above / self.error if self.error > 0 else float(np.sign(above)) * np.inf


def judge(source: str, claim: str, comparisons: Sequence[Comparison]) -> Verdict:
    """All parts must hold; one part that clearly does not is enough against the claim."""
    least = min(comparisons, key=lambda one: one.certainty)
    outcome = HOLDS if least.certainty > SURE else FAILS if least.certainty < -SURE else UNDECIDED
    role = {HOLDS: "closest", FAILS: "against it", UNDECIDED: "least certain"}[outcome]
    error = f" ± {least.error:.2g}" if np.isfinite(least.error) else ", one run only"
    evidence = f"{role} of {len(comparisons)}: {least.label} {least.difference:+.3g}{error}"
    return Verdict(source, claim, outcome, evidence)


def compare(
    label: str, better: Float[np.ndarray, "run"], worse: Float[np.ndarray, "run"], margin: float = 0.0
) -> Comparison:
    """Two quantities of the same runs; medians, because at large rates a run now and then takes a bad step."""
    differences = better - worse
    if differences.size < 2:
        return Comparison(label, float(differences[0]), float("nan"), margin)
    picks = np.random.default_rng(0).integers(differences.size, size=(_RESAMPLES, differences.size))
    error = float(np.median(differences[picks], axis=1).std(ddof=1))
    return Comparison(label, float(np.median(differences)), error, margin)


def table1_verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """The claims of the paper's Table 1, as far as the columns that were run allow."""
    rows = _by_dataset(cells)
    others = [column for column in COLUMNS if column != "S7"]
    best = [_pair(row, "S7", column) for row in rows for column in others]
    grows = [_pair(row, more, fewer, TIE) for row in rows for fewer, more in pairwise(GROWING)]
    return _judged(
        ("Table 1", "All seven variates together reach the best ELBO, on every data set (nats)", best),
        ("Table 1", f"More variates never hurt: − ≤ S4 ≤ S5 ≤ S6 ≤ S7, to within {TIE:g} nat", grows),
        ("Table 1", "Of the single variates c7 is better than c5 (nats)", [_pair(row, "c7", "c5") for row in rows]),
        ("Table 1", "c7 alone is better than the four weakest together (nats)", [_pair(r, "c7", "S4") for r in rows]),
        ("Table 1", "c5 alone is better than the four weakest together (nats)", [_pair(r, "c5", "S4") for r in rows]),
    )


def figure2_verdicts(sweeps: Sequence[Sweep]) -> list[Verdict]:
    """The claim of figure 2's right column."""
    parts = []
    for name, row in _sweeps_by_dataset(sweeps).items():
        for share in (0.2, 0.4, 0.6, 0.8, 1.0):
            for column in (c for c in row if c != "S7" and "S7" in row):
                record = round(share * (row["S7"].curves.shape[2] - 1))
                label = f"{name}, S7 − {column} at iteration {row['S7'].iterations[record]:.0f}:"
                parts.append(compare(label, _at_best_rate(row["S7"], record), _at_best_rate(row[column], record)))
    claim = "With the best rate for each iteration, all seven variates are ahead from a fifth of the way on (nats)"
    return _judged(("Figure 2", claim, parts))


def figure3_verdicts(sweeps: Sequence[Sweep]) -> list[Verdict]:
    """The claims of figure 3."""
    rows = _sweeps_by_dataset(sweeps)
    dominates, gains = [], []
    for name, row in rows.items():
        ratios = {column: np.round(sweep.rates / LEARNING_RATES[name], 6) for column, sweep in row.items()}
        for fewer, more in pairwise(column for column in GROWING if column in row):
            for k in np.flatnonzero(ratios[more] <= 1.0).tolist():
                label = f"{name}, {more} − {fewer} at rate {row[more].rates[k]:.3g}:"
                dominates.append(compare(label, _final(row[more], k), _final(row[fewer], k), TIE))
        if "S7" in row and "none" in row and set(SHOWN) <= set(ratios["S7"]):
            low, high = (int(np.flatnonzero(ratios["S7"] == factor)[0]) for factor in SHOWN)
            ahead = [_final(row["S7"], k) - _final(row["none"], k) for k in (low, high)]
            gains.append(compare(f"{name}, gain at the larger rate − gain at the smaller:", ahead[1], ahead[0]))
    claim = f"At no rate up to Table 1's do more variates hurt, to within {TIE:g} nat"
    verdicts = _judged(
        ("Figure 3", claim, dominates),
        ("Figure 3", "The gain over the base gradient grows with the rate (nats)", gains),
    )
    complete = {name: row for name, row in rows.items() if set(GROWING) <= set(row)}
    return [*verdicts, _best_rate_grows(complete)] if complete else verdicts


def figure1_verdicts(figure: Figure1) -> list[Verdict]:
    """The claim of figure 1."""
    half = figure.variance[:, figure.steps.size // 2 :]
    logs = {column: np.log10(np.maximum(half[COLUMNS.index(column)], 1e-30)) for column in GROWING}
    parts = [
        compare(f"log10 variance of {fewer} − {more}:", logs[fewer], logs[more], margin=float(np.log10(1.05)))
        for fewer, more in pairwise(GROWING)
    ]
    claim = "Along one sequence of weights, each larger ensemble has the lower variance (to within 5%, second half)"
    return _judged(("Figure 1", claim, parts))


def figure4_verdicts(panels: Sequence[Panel]) -> list[Verdict]:
    """The claims of the sensitivity analysis."""
    logs = [np.log10(panel.sq_norm) for panel in panels]
    at = int(np.argmin(np.abs(np.log(np.array(STRENGTHS) / V0))))
    falls = [
        compare(f"{_panel_name(panel)}, log10 at M = {few} − M = {many}:", log[k, at], log[k + 1, at], margin=0.01)
        for panel, log in zip(panels, logs, strict=True)
        for k, (few, many) in enumerate(pairwise(SAMPLE_SIZES))
    ]
    verdicts = _judged(("Figure 4", f"At v0 = {V0:g} the squared norm falls as M grows (to within 2%)", falls))
    plane, now, old = logs
    small, best = _extremes(panels[0], 0)
    label = f"2D, M = {SAMPLE_SIZES[0]}, log10 at v0 = {STRENGTHS[small]:.0e} − at v0 = {STRENGTHS[best]:.0e}:"
    fewest = [compare(label, plane[0, small], plane[0, best])]
    asks = []
    for k, size in enumerate(SAMPLE_SIZES):
        (_, best_old), (_, best_now) = _extremes(panels[2], k), _extremes(panels[1], k)
        cost = old[k, small] - old[k, best_old] - (now[k, small] - now[k, best_now])
        asks.append(compare(f"M = {size}, log10 cost of a tiny v0, old − current moments:", cost, np.zeros_like(cost)))
    return verdicts + _judged(
        ("Figure 4", "With few evaluations the small 2D problem asks for a larger v0 than a tiny one", fewest),
        ("Figure 4", "Old moments ask for a larger v0 than current ones: a tiny v0 costs more", asks),
    )


def _judged(*claims: tuple[str, str, Sequence[Comparison | None]]) -> list[Verdict]:
    """Judge the claims for which something was run."""
    parts = [(source, claim, [one for one in some if one is not None]) for source, claim, some in claims]
    return [judge(source, claim, some) for source, claim, some in parts if some]


def _best_rate_grows(rows: dict[str, dict[str, Sweep]]) -> Verdict:
    """Resample the runs and count how often the best rates are in order, with S7's above the base's."""
    shares = {}
    for name, row in rows.items():
        finals = [np.stack([_final(row[column], k) for k in range(row[column].rates.size)]) for column in GROWING]
        num_runs = finals[0].shape[1]
        picks = np.random.default_rng(0).integers(num_runs, size=(_RESAMPLES, num_runs))
        best = np.stack([np.median(final[:, picks], axis=2).argmax(axis=0) for final in finals])
        shares[name] = float(np.mean(np.all(np.diff(best, axis=0) >= 0, axis=0) & (best[-1] > best[0])))
    name, least = min(shares.items(), key=lambda item: item[1])
    several = next(iter(rows.values()))["none"].curves.shape[1] > 1
    outcome = UNDECIDED if not several else HOLDS if least > 0.99 else FAILS if least < 0.01 else UNDECIDED
    claim = "The best learning rate grows with the ensemble: in order from − to S7, and larger for S7 than for −"
    return Verdict("Figure 3", claim, outcome, f"in {least:.0%} of resampled runs on {name}, the least of {len(rows)}")


def _pair(row: dict[str, Cell], better: str, worse: str, margin: float = 0.0) -> Comparison | None:
    if better not in row or worse not in row:
        return None
    one, two = row[better], row[worse]
    label = f"{one.dataset}, {better} − {'−' if worse == 'none' else worse}:"
    return compare(label, _finite(one.curves[:, -1]), _finite(two.curves[:, -1]), margin)


def _by_dataset(cells: Iterable[Cell]) -> list[dict[str, Cell]]:
    rows: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.dataset, {})[cell.variates] = cell
    return list(rows.values())


def _sweeps_by_dataset(sweeps: Iterable[Sweep]) -> dict[str, dict[str, Sweep]]:
    rows: dict[str, dict[str, Sweep]] = {}
    for sweep in sweeps:
        rows.setdefault(sweep.dataset, {})[sweep.variates] = sweep
    return rows


def _at_best_rate(sweep: Sweep, record: int) -> Float[np.ndarray, "run"]:
    return _finite(sweep.curves[sweep.median[:, record].argmax(), :, record])


def _final(sweep: Sweep, rate: int) -> Float[np.ndarray, "run"]:
    return _finite(sweep.curves[rate, :, -1])


def _finite(values: Float[np.ndarray, "run"]) -> Float[np.ndarray, "run"]:
    """A run that left the finite numbers counts as a very bad one."""
    return np.maximum(np.nan_to_num(values, nan=-1e12, neginf=-1e12), -1e12)


def _extremes(panel: Panel, size: int) -> tuple[int, int]:
    """Index of the smallest v0, and of the best one."""
    return 0, int(panel.mean[size].argmin())


def _panel_name(panel: Panel) -> str:
    return f"{panel.dataset}{' with old moments' if panel.lag else ''}"
