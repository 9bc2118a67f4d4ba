# SPDX-License-Identifier: Apache-2.0
"""Errors of draws against reference moments, and the counts over many posteriors."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.bench.posteriordb.source import Reference

MEAN_ERRORS = (0.3, 0.1)
"""Thresholds of the largest error of a mean, in reference standard deviations."""

SD_RATIO = 1.2
"""Largest ratio of standard deviations, in either direction, that counts as right."""


def moment_errors(draws: Mapping[str, Any], sites: Mapping[str, str], reference: Reference) -> dict[str, Any]:
    """Errors of means, in reference standard deviations, and of log standard deviations.

    Args:
        draws: arrays by site, draws first.
        sites: the reference's name of each site.
        reference: moments to compare with.
    """
    flat = _scalars(draws, sites)
    if set(flat) != set(reference.names):
        raise ValueError(f"Draws must have the parameters {sorted(reference.names)}, got {sorted(flat)}.")
    means, sds = (np.array([moment(flat[name]) for name in reference.names]) for moment in (np.mean, np.std))
    gaps = np.abs(means - reference.means) / reference.sds
    if not np.all(np.isfinite(gaps)):
        return {"num_not_finite": int(np.sum(~np.isfinite(gaps)))}
    with np.errstate(divide="ignore"):
        ratios = np.log(sds / reference.sds)
    return {
        "max_mean_error": float(gaps.max()),
        "rms_mean_error": float(np.sqrt(np.mean(gaps**2))),
        "max_abs_log_sd_ratio": float(np.abs(ratios).max()),
        "median_log_sd_ratio": float(np.median(ratios)),
        "log_sd_ratios": [round(float(ratio), 4) for ratio in ratios],
        "worst_mean": reference.names[int(gaps.argmax())],
        "worst_sd": reference.names[int(np.abs(ratios).argmax())],
        "num_draws": int(next(iter(flat.values())).shape[0]),
    }


def summarise(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts over the fits of one method; a fit without errors counts as wrong."""
    seconds = _known(records, "seconds_total")
    mean_errors = [_or_inf(record.get("max_mean_error")) for record in records]
    sd_errors = [_or_inf(record.get("max_abs_log_sd_ratio")) for record in records]
    gradients, warm = (_known(records, name) for name in ("gradients", "seconds_warm"))
    return {
        "posteriors": len(records),
        "median_seconds": statistics.median(seconds) if seconds else None,
        "largest_seconds": max(seconds, default=None),
        "median_warm": statistics.median(warm) if warm else None,
        **{f"mean_error_below_{most:g}": sum(error < most for error in mean_errors) for most in MEAN_ERRORS},
        "sds_within_20_percent": sum(error < math.log(SD_RATIO) for error in sd_errors),
        "converged": sum(record.get("status") == "CONVERGED" for record in records),
        "median_gradients": statistics.median(gradients) if gradients else None,
    }


def _scalars(draws: Mapping[str, Any], sites: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Draws of each scalar parameter, by the reference's names."""
    flat = {}
    for site, name in sites.items():
        values = np.asarray(draws[site], float)
        if values.ndim == 1:
            flat[name] = values
            continue
        for number, column in enumerate(values.reshape(values.shape[0], -1).T, start=1):
            flat[f"{name}[{number}]"] = column
    return flat


def _known(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [record[name] for record in records if record.get(name) is not None]


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value
