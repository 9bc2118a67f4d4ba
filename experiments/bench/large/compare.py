# SPDX-License-Identifier: Apache-2.0
"""What the runs of a model say together: the best ELBO, the seconds to come near it, and errors against NUTS."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bench.large.methods import REFERENCE

NEAR = 1e-3
"""Nats for each coordinate that an ELBO may be below the best and be near it."""

LARGEST_RHAT = 1.05
"""Beyond which the chains of the reference do not agree, and it is none."""

Record = Mapping[str, Any]


def curve(record: Record) -> list[tuple[float, float]]:
    """Seconds and ELBO of each look that has one."""
    pairs = zip(record.get("seconds") or [], record.get("elbos") or [], strict=False)
    return [(at, elbo) for at, elbo in pairs if elbo is not None and math.isfinite(elbo)]


def best(records: Sequence[Record]) -> tuple[float, float] | None:
    """The highest ELBO and the fewest seconds to it; `None` where there is none."""
    first = min(((-elbo, at) for record in records for at, elbo in curve(record)), default=None)
    return None if first is None else (-first[0], first[1])


def seconds_to(records: Sequence[Record], elbo: float) -> float | None:
    """The fewest after which a run was as high; `None` where none was."""
    return min((at for record in records for at, value in curve(record) if value >= elbo), default=None)


def compare(records: Sequence[Record]) -> list[dict[str, Any]]:
    """A row for each method of one model: its best ELBO, seconds to it and to near the best of all, and memory."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record["method"], []).append(record)
    of_all = best(records)
    rows = []
    for method, runs in groups.items():
        own, dim = best(runs), next((run["dim"] for run in runs if run.get("dim")), 0)
        top = max((run for run in runs if curve(run)), key=lambda run: max(e for _, e in curve(run)), default=runs[0])
        rows.append(
            {
                "method": method,
                "elbo": None if own is None else own[0],
                "seconds": None if own is None else own[1],
                "near": None if of_all is None else seconds_to(runs, of_all[0] - NEAR * dim),
                "peak_mb": max((run["peak_mb"] for run in runs if run.get("peak_mb")), default=None),
                "setting": top.get("setting") or {},
                "status": top.get("status") or top.get("error", "")[-80:],
                "errors": top.get("errors"),
            }
        )
    return sorted(rows, key=lambda row: (row["method"] == REFERENCE, -(row["elbo"] or -math.inf)))


def moment_errors(found: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Of means in standard deviations of the reference, and of standard deviations as shares of them.

    Args:
        found: looks of a method, the last of which counts; with those of linear response, where it has them.
        reference: that of NUTS.
    """
    mean, sd = reference["means"][-1], reference["roots"][-1]
    root = found["roots"][-1]
    own = root if root.ndim == 1 else np.sqrt(np.sum(root**2, axis=1))
    shifts, ratios = np.abs(found["means"][-1] - mean) / sd, np.abs(own / sd - 1)
    errors = {
        "mean_rms": float(np.sqrt(np.mean(shifts**2))),
        "mean_largest": float(shifts.max()),
        "sd_median": float(np.median(ratios)),
    }
    if "places" in found:
        places = found["places"]
        of_response = np.abs(found["response_sd"] / sd[places] - 1)
        errors |= {"sd_of_some": float(np.median(ratios[places])), "response": float(np.median(of_response))}
        errors["response_largest"] = float(of_response.max())
    return {name: round(value, 4) for name, value in errors.items()}


def by_model(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of each model in each run, and what is told about that."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in content["records"]:
        groups.setdefault((record["model"], record.get("run", "")), []).append(record)
    about = content.get("about", {}).get("runs", {})
    return [
        {
            "name": name,
            "run": about.get(run, run),
            "dim": next((one["dim"] for one in group if one.get("dim")), None),
            "rows": compare(group),
        }
        for (name, run), group in groups.items()
        if any(record["method"] != REFERENCE for record in group)
    ]
