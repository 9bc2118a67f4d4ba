# SPDX-License-Identifier: Apache-2.0
"""The paper's claims, each tested on our runs: it holds, it does not hold, or it is undecided."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.paper.comparison import (
    FAILS,
    FEWEST_RUNS,
    HOLDS,
    LEVEL,
    LOST,
    UNDECIDED,
    Comparison,
    Verdict,
    compare,
    decide,
)
from experiments.paper.figure1 import Figure1
from experiments.paper.figure4 import SAMPLE_SIZES, STRENGTHS, Panel
from experiments.paper.protocol import V0
from experiments.paper.sweep import COLUMNS, LEARNING_RATES, SHOWN, Sweep
from experiments.paper.table1 import Cell

GROWING = ("none", "S4", "S5", "S6", "S7")
"""The paper's ensembles, each a subset of the next."""

PAPER_DATASETS = ("ionosphere", "australian", "sonar")

TIE = 1.0
"""Nats by which a larger ensemble may be worse and still do no harm."""

_RESAMPLES = 500


def table1_verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    """The claims of the paper's Table 1, as far as the data sets and columns that were run allow."""
    rows = _by_dataset(cell for cell in cells if cell.dataset in PAPER_DATASETS)
    where = f"on {', '.join(rows)} (nats)"
    best = [_pair(row, "S7", column) for row in rows.values() for column in COLUMNS if column != "S7"]
    grows = [_pair(row, more, fewer, TIE) for row in rows.values() for fewer, more in pairwise(GROWING)]
    singles = [("c7", "c5"), ("c7", "S4"), ("c5", "S4")]
    c7_c5, c7_s4, c5_s4 = ([_pair(row, *names) for row in rows.values()] for names in singles)
    return _decided(
        ("Table 1", f"All seven variates together reach the best ELBO {where}", best),
        ("Table 1", f"More variates never hurt, from none over S4, S5 and S6 to S7, {where}", grows),
        ("Table 1", f"Of the single variates c7 is better than c5 {where}", c7_c5),
        ("Table 1", f"c7 alone is better than the four weakest together {where}", c7_s4),
        ("Table 1", f"c5 alone is better than the four weakest together {where}", c5_s4),
    )


def figure2_verdicts(sweeps: Sequence[Sweep]) -> list[Verdict]:
    """The claim of figure 2's right column."""
    parts, rows = [], _by_dataset(sweeps)
    for name, row in rows.items():
        for share in (0.2, 0.4, 0.6, 0.8, 1.0):
            for column in (c for c in row if c != "S7" and "S7" in row):
                record = round(share * (row["S7"].curves.shape[2] - 1))
                label = f"{name}, S7 over {_label(column)} at iteration {row['S7'].iterations[record]:.0f}:"
                parts.append(compare(label, _at_best_rate(row["S7"], record), _at_best_rate(row[column], record)))
    claim = f"With the best rate for each iteration all seven are ahead, on {', '.join(rows)} (nats)"
    return _decided(("Figure 2", claim, parts))


def figure3_verdicts(sweeps: Sequence[Sweep]) -> list[Verdict]:
    """The claims of figure 3."""
    rows = _by_dataset(sweeps)
    dominates, gains = [], []
    for name, row in rows.items():
        ratios = {column: np.round(sweep.rates / LEARNING_RATES[name], 6) for column, sweep in row.items()}
        for fewer, more in pairwise(column for column in GROWING if column in row):
            for k in np.flatnonzero(ratios[more] <= 1.0).tolist():
                label = f"{name}, {more} over {_label(fewer)} at rate {row[more].rates[k]:.3g}:"
                dominates.append(compare(label, row[more].curves[k, :, -1], row[fewer].curves[k, :, -1], TIE))
        if "S7" in row and "none" in row and set(SHOWN) <= set(ratios["S7"]):
            low, high = (int(np.flatnonzero(ratios["S7"] == factor)[0]) for factor in SHOWN)
            ahead = [row["S7"].curves[k, :, -1] - row["none"].curves[k, :, -1] for k in (low, high)]
            gains.append(compare(f"{name}, gain at the larger rate over gain at the smaller:", ahead[1], ahead[0]))
    where = f"on {', '.join(rows)} (nats)"
    verdicts = _decided(
        ("Figure 3", f"At no rate up to Table 1's do more variates hurt {where}", dominates),
        ("Figure 3", f"The gain over the base gradient grows with the rate {where}", gains),
    )
    complete = {name: row for name, row in rows.items() if set(GROWING) <= set(row)}
    return [*verdicts, _best_rate_verdict(complete)] if complete else verdicts


def figure1_verdicts(figure: Figure1) -> list[Verdict]:
    """The claim of figure 1, from independent blocks of evaluations along the sequence."""
    later = figure.variance[:, figure.steps.size // 2 :].mean(axis=1)
    logs = {column: np.log10(np.maximum(later[COLUMNS.index(column)], 1e-30)) for column in GROWING}
    parts = [
        compare(f"{_label(fewer)} over {more}, log10:", logs[fewer], logs[more], margin=float(np.log10(1.05)))
        for fewer, more in pairwise(GROWING)
    ]
    claim = f"In the second half of one sequence of weights on {figure.dataset} larger ensembles vary less"
    return _decided(("Figure 1", claim, parts))


def figure4_verdicts(panels: Sequence[Panel]) -> list[Verdict]:
    """The claims of the sensitivity analysis."""
    plane, now, old = panels
    at = int(np.argmin(np.abs(np.log(np.array(STRENGTHS) / V0))))
    falls = []
    for panel in panels:
        log = np.log10(panel.sq_norm[:, at])
        for k, (few, many) in enumerate(pairwise(SAMPLE_SIZES)):
            label = f"{_panel_name(panel)}, M = {few} over M = {many}, log10:"
            falls.append(compare(label, log[k], log[k + 1], margin=float(np.log10(1.02))))
    fewest = SAMPLE_SIZES[0]
    needs = [compare(f"2D, M = {fewest}, a tiny v0 over the best, log10:", *_tiny_and_best(plane, 0))]
    sizes = range(1, len(SAMPLE_SIZES))
    does_well, asks = [], []
    for k in sizes:
        tiny, best = _tiny_and_best(now, k)
        label = f"{now.dataset}, M = {SAMPLE_SIZES[k]}, the best v0 over a tiny one, log10:"
        does_well.append(compare(label, best, tiny, margin=float(np.log10(1.1))))
        old_tiny, old_best = _tiny_and_best(old, k)
        label = f"M = {SAMPLE_SIZES[k]}, cost of a tiny v0 with old moments over current ones, log10:"
        asks.append(compare(label, old_tiny - old_best, tiny - best))
    return _decided(
        ("Figure 4", f"At v0 = {V0:g} the squared norm falls as M grows, on both data sets", falls),
        ("Figure 4", f"On the 2D data {fewest} evaluations ask for a larger v0 than a tiny one", needs),
        ("Figure 4", f"On {now.dataset} even a tiny v0 does well, from M = {SAMPLE_SIZES[1]} on", does_well),
        ("Figure 4", f"With old moments a tiny v0 costs more, from M = {SAMPLE_SIZES[1]} on", asks),
    )


def _decided(*claims: tuple[str, str, Sequence[Comparison | None]]) -> list[Verdict]:
    """Decide the claims for which something was run."""
    parts = [(source, claim, [one for one in some if one is not None]) for source, claim, some in claims]
    return [decide(source, claim, some) for source, claim, some in parts if some]


def _best_rate_verdict(rows: dict[str, dict[str, Sweep]]) -> Verdict:
    """Resample the runs and count how often the best rates are in order, with S7's above the base's."""
    shares = {}
    for name, row in rows.items():
        finals = [np.nan_to_num(row[column].curves[:, :, -1], nan=LOST) for column in GROWING]
        num_runs = finals[0].shape[1]
        picks = np.random.default_rng(0).integers(num_runs, size=(_RESAMPLES, num_runs))
        best = np.stack([np.median(final[:, picks], axis=2).argmax(axis=0) for final in finals])
        shares[name] = float(np.mean(np.all(np.diff(best, axis=0) >= 0, axis=0) & (best[-1] > best[0])))
    name, least = min(shares.items(), key=lambda item: item[1])
    enough = next(iter(rows.values()))["none"].curves.shape[1] >= FEWEST_RUNS
    sure = HOLDS if least > 1 - LEVEL else FAILS if least < LEVEL else UNDECIDED
    claim = f"The best learning rate never falls as the ensemble grows, and is larger for S7, on {', '.join(rows)}"
    evidence = f"in {least:.0%} of resampled runs on {name}, the least of {len(rows)}"
    return Verdict("Figure 3", claim, sure if enough else UNDECIDED, evidence)


def _pair(row: dict[str, Cell], better: str, worse: str, margin: float = 0.0) -> Comparison | None:
    if better not in row or worse not in row:
        return None
    label = f"{row[better].dataset}, {better} over {_label(worse)}:"
    return compare(label, row[better].curves[:, -1], row[worse].curves[:, -1], margin)


def _by_dataset(results: Iterable[Any]) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for result in results:
        rows.setdefault(result.dataset, {})[result.variates] = result
    return rows


def _at_best_rate(sweep: Sweep, record: int) -> Float[np.ndarray, "run"]:
    """Each run at the rate that was best for the others, so that no run chooses its own rate."""
    values = np.nan_to_num(sweep.curves[:, :, record], nan=-np.inf, neginf=-np.inf)
    num_runs = values.shape[1]
    if num_runs < FEWEST_RUNS:
        return sweep.curves[np.median(values, axis=1).argmax(), :, record]
    others = [np.median(np.delete(values, run, axis=1), axis=1).argmax() for run in range(num_runs)]
    return sweep.curves[others, np.arange(num_runs), record]


def _tiny_and_best(panel: Panel, size: int) -> tuple[Float[np.ndarray, "repetition"], Float[np.ndarray, "repetition"]]:
    """Logarithms at the smallest v0 and at the one that is best on the other half of the repetitions."""
    logs = np.log10(panel.sq_norm[size])
    half = logs.shape[1] // 2
    best = panel.sq_norm[size, :, :half].mean(axis=1).argmin()
    return logs[0, half:], logs[best, half:]


def _label(column: str) -> str:
    return "the base gradient" if column == "none" else column


def _panel_name(panel: Panel) -> str:
    return f"{panel.dataset}{' with old moments' if panel.lag else ''}"
