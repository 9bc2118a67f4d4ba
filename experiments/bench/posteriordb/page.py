# SPDX-License-Identifier: Apache-2.0
"""All methods at once: accuracy against seconds, the counts, and every posterior."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

from experiments.bench.posteriordb.accuracy import MEAN_ERRORS, summarise
from experiments.common.plots import PALETTE, in_all_variants, make_panels

Records = Sequence[dict[str, Any]]

PICTURE = "posteriordb"
_OURS, _REFERENCE = "quell", "nuts"


def by_method(records: Records) -> dict[str, list[dict[str, Any]]]:
    """The records of each method, in the order in which they first come."""
    found: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record["method"], []).append(record)
    return found


def rows_of(records: Records) -> list[dict[str, Any]]:
    """The counts of each method in each run, the most accurate first, with its seconds as a share of NUTS's there."""
    groups: dict[tuple[str, str | None], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["method"], record.get("run")), []).append(record)
    rows = [
        {"method": method, "run": run, "is_ours": method.startswith(_OURS), "of_nuts": _of_nuts(group, records)}
        | summarise(group)
        for (method, run), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-_share(row, MEAN_ERRORS[0]), row["median_seconds"] or math.inf))


def _of_nuts(group: Records, records: Records) -> float | None:
    """Median over posteriors."""
    reference = _median_seconds([record for record in records if record["method"] == _REFERENCE])
    own = _median_seconds(group)
    shares = [seconds / reference[key] for key, seconds in own.items() if key in reference]
    return statistics.median(shares) if shares else None


def _median_seconds(records: Records) -> dict[tuple[str | None, str], float]:
    """By run, or the run on such a machine, and posterior, of fits that came to an end."""
    found: dict[tuple[str | None, str], list[float]] = {}
    for record in records:
        if record.get("seconds_total") is not None:
            key = record.get("as_run", record.get("run")), record["posterior"]
            found.setdefault(key, []).append(record["seconds_total"])
    return {key: statistics.median(seconds) for key, seconds in found.items()}


def variables(content: dict[str, Any]) -> dict[str, Any]:
    """Variables of the template, for records and what is told about their runs."""
    records = content["records"]
    groups, rows = by_method(records), rows_of(records)
    names = sorted({record["posterior"] for record in records})
    cells = {name: _cells(group) for name, group in groups.items()}
    order = list(dict.fromkeys(row["method"] for row in rows))
    return {
        "rows": rows,
        "errors": [f"{most:g}" for most in MEAN_ERRORS],
        "methods": order,
        "posteriors": [{"name": name, "cells": [cells[method].get(name) for method in order]} for name in names],
        "runs": content.get("about", {}).get("runs", {}),
        "versions": sorted({str(record["jax"]) for record in records if record.get("jax")}),
    }


def _cells(records: Records) -> dict[str, dict[str, Any]]:
    """Of each posterior the largest error of any run, and the median of the seconds."""
    found: dict[str, dict[str, Any]] = {}
    for name in {record["posterior"] for record in records}:
        runs = [record for record in records if record["posterior"] == name]
        errors = [math.inf if run.get("max_mean_error") is None else run["max_mean_error"] for run in runs]
        seconds = [run["seconds_total"] for run in runs if run.get("seconds_total") is not None]
        worst = max(errors)
        kind = next((kind for kind, most in (("holds", 0.1), ("open", 0.3)) if worst < most), "fails")
        found[name] = {
            "error": "–" if math.isinf(worst) else f"{worst:.2f}" if worst < 100 else f"{worst:.0f}",
            "seconds": f"{statistics.median(seconds):.1f}" if seconds else "–",
            "kind": kind,
        }
    return found


def _seconds(record: dict[str, Any]) -> float | None:
    return record.get("seconds_total")


def _share(row: dict[str, Any], most: float) -> float:
    return row[f"mean_error_below_{most:g}"] / row["posteriors"]


@in_all_variants
def draw_accuracy(records: Records, tall: bool) -> Any:
    """Posteriors whose means are all right, against seconds from a cold process; one point for each method.

    Where NUTS was run beside all of them, seconds are shares of its own.
    """
    figure, ((axes,),) = make_panels(1, 1, tall=tall, width=7.4 if not tall else 4.6)
    groups, all_of_them = by_method(records), len({record["posterior"] for record in records})
    rows = [(name, {"of_nuts": _of_nuts(group, records), **summarise(group)}) for name, group in groups.items()]
    rows = [pair for pair in rows if pair[1]["median_seconds"] is not None]
    axis = "of_nuts" if all(row["of_nuts"] is not None for _, row in rows) else "median_seconds"
    rows = sorted(rows, key=lambda pair: pair[1][axis])
    for number, (name, row) in enumerate(rows):
        color, seconds = PALETTE[number % len(PALETTE)], row[axis]
        shares = [100 * _share(row, most) for most in MEAN_ERRORS]
        num = len({record["posterior"] for record in groups[name]})
        label = name if num == all_of_them else f"{name} ({num} of {all_of_them})"
        axes.plot([seconds, seconds], shares, color=color, linewidth=1.2)
        marker = {"marker": "o" if name.startswith(_OURS) else "s", "color": color, "markersize": 8, "linestyle": ""}
        axes.plot([seconds], shares[:1], **marker)
        axes.plot([seconds], shares[1:], **marker | {"markersize": 5, "markerfacecolor": "none"})
        others = [(other[axis] / seconds, 100 * _share(other, MEAN_ERRORS[0]) - shares[0]) for _, other in rows]
        near = [ratio for ratio, above in others if 0.5 < ratio < 2 and abs(above) < 8]
        is_left = min(near) == 1 < max(near)  # of its point, where nothing else is
        place = (-7 if is_left else 7, 4 if number % 2 else -11)
        style = {"textcoords": "offset points", "fontsize": "small", "ha": "right" if is_left else "left"}
        axes.annotate(label, (seconds, shares[0]), xytext=place, **style)
    least, most = (pick(row[axis] for _, row in rows) for pick in (min, max))
    axes.set(xscale="log", ylim=(-4, 106), xlim=(0.6 * least, 2.2 * most))
    ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if 0.6 * least < tick < 2.2 * most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    told = "seconds from the end of the imports to 1,000 draws, median"
    axes.set_xlabel(told if axis == "median_seconds" else "seconds to 1,000 draws, cold, as a share of NUTS's, median")
    axes.set_ylabel(f"% of posteriors: all means within {MEAN_ERRORS[0]:g} sd\n(hollow: within {MEAN_ERRORS[1]:g})")
    axes.grid(alpha=0.25)
    return figure
