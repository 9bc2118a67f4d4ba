# SPDX-License-Identifier: Apache-2.0
"""Subsets of variates by name, and the rows of the fits with one of them."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from quell.core.checks import check_name
from quell.diagnostics.elbo import estimate_elbo
from quell.evaluation import Problem, Sampler
from quell.fit import FitResult, Status
from quell.gradient import default_variates
from quell.paper import SUBSETS, VARIATES, variates
from quell.sweep.result import SweepRow
from quell.variates import ControlVariate

DEFAULT = "default"
"""The name of the cheap variates that suit a problem."""

LARGEST_ESTIMATE = 10_000_000
"""Most evaluations of a datum's likelihood for the ELBO of one fit, where it must be sampled."""

_LEAST_SAMPLES, _MOST_SAMPLES = 10, 1000


def subset_rows(
    key: Key[Array, ""], problem: Problem, results: Sequence[FitResult], *, subset: str, rates: Sequence[float]
) -> tuple[SweepRow, ...]:
    """One row per learning rate; all fits see the same samples, so that their ELBOs compare.

    Args:
        key: for the samples.
        problem: model and family.
        results: of the fits, all seeds of the first rate first.
        subset: its name.
        rates: learning rates.
    """
    elbos, errors = np.array([_final_elbo(key, problem, result) for result in results]).T.reshape(2, len(rates), -1)
    diverged = np.array([result.status is Status.DIVERGED for result in results]).reshape(elbos.shape)
    return tuple(
        SweepRow(subset, rate, tuple(row.tolist()), int(lost.sum()), float(error.max()), results[0].seconds.total)
        for rate, row, lost, error in zip(rates, elbos, diverged, errors, strict=True)
    )


def _final_elbo(key: Key[Array, ""], problem: Problem, result: FitResult) -> tuple[float, float]:
    """ELBO and standard error where a fit ended; minus infinity where it diverged."""
    if result.status is not Status.DIVERGED:
        num = int(np.clip(LARGEST_ESTIMATE // problem.model.num_data, _LEAST_SAMPLES, _MOST_SAMPLES))
        # On the default device, whichever they are on, so that one program serves all.
        params = jax.tree.map(jnp.asarray, jax.device_get(result.params))
        estimate = estimate_elbo(key, problem, params, num=num)
        if np.isfinite(estimate.value):
            return estimate.value, estimate.standard_error
    return -np.inf, 0.0


def check_subset(name: str) -> None:
    """Refuse a name that is not known, or a sum with a part that is not a single variate."""
    parts = name.split("+")
    for part in parts:
        check_name("The subset", part, [DEFAULT, *SUBSETS, *VARIATES] if len(parts) == 1 else VARIATES)


def named_subsets(given: Any, problem: Problem, sampler: Sampler) -> dict[str, tuple[ControlVariate, ...]]:
    """Variates by the name of their subset, in the order given.

    Args:
        given: names, such as `none`, `S7`, `default` or `c1+c7`, and tuples of variates.
        problem: model and family, for `default`.
        sampler: for `default`.
    """
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not listed:
        raise ValueError(
            f"`subsets` must be a list of at least one, got {given!r}; try `subsets=('none', 'S7', 'default')`."
        )
    found: dict[str, tuple[ControlVariate, ...]] = {}
    for subset in listed:
        name, members = _named(subset, problem, sampler)
        if name in found:
            raise ValueError(f"`subsets` must be different, got {name!r} twice.")
        found[name] = members
    return found


def _named(subset: Any, problem: Problem, sampler: Sampler) -> tuple[str, tuple[ControlVariate, ...]]:
    if isinstance(subset, str):
        check_subset(subset)
        if subset == DEFAULT:
            return subset, default_variates(problem, sampler)
        return subset, variates(subset.split("+") if "+" in subset else subset)
    members = tuple(subset) if isinstance(subset, Iterable) else (subset,)
    if not all(isinstance(member, ControlVariate) for member in members):
        raise TypeError(
            f"`subsets` must be names or tuples of control variates, got {subset!r}; try "
            "`subsets=('S7', 'c1+c7', quell.default_variates(problem))`."
        )
    return "+".join(member.name for member in members) or "none", members
