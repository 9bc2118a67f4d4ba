# SPDX-License-Identifier: Apache-2.0
"""Subsets of variates by name, and the results of the fits with one of them."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

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


class SubsetResult(NamedTuple):
    """Final ELBOs of all fits with one subset, by learning rate and seed.

    Args:
        elbos: minus infinity where a fit diverged.
        errors: their standard errors.
        diverged: which fits did.
        seconds: of all fits together.
    """

    elbos: Float[np.ndarray, "rate seed"]
    errors: Float[np.ndarray, "rate seed"]
    diverged: Bool[np.ndarray, "rate seed"]
    seconds: float

    @classmethod
    def of(
        cls, key: Key[Array, ""], problem: Problem, results: Sequence[FitResult], *, num_rates: int
    ) -> "SubsetResult":
        """From the fits, all seeds of the first rate first; all see the same samples, so that their ELBOs compare."""
        num = int(np.clip(LARGEST_ESTIMATE // problem.model.num_data, _LEAST_SAMPLES, _MOST_SAMPLES))
        diverged = np.array([result.status is Status.DIVERGED for result in results])
        found = np.full((len(results), 2), (-np.inf, 0.0))
        for number in np.flatnonzero(~diverged).tolist():
            # On the default device, whichever they are on, so that one program serves all.
            params = jax.tree.map(jnp.asarray, jax.device_get(results[number].params))
            estimate = estimate_elbo(key, problem, params, num=num)
            if np.isfinite(estimate.value):
                found[number] = estimate.value, estimate.standard_error
        elbos, errors, lost = (values.reshape(num_rates, -1) for values in (*found.T, diverged))
        return cls(elbos, errors, lost, results[0].seconds)

    def rows(self, subset: str, rates: Sequence[float]) -> list[SweepRow]:
        """One row of the table per rate."""
        return [
            SweepRow(
                subset=subset,
                learning_rate=rate,
                elbos=tuple(self.elbos[number].tolist()),
                num_diverged=int(self.diverged[number].sum()),
                error=float(self.errors[number].max()),
                seconds=self.seconds,
            )
            for number, rate in enumerate(rates)
        ]


def check_subset(name: str) -> None:
    """Refuse a name that is not known, or a sum with a part that is not a single variate."""
    parts = name.split("+")
    for part in parts:
        check_name("subset", part, [DEFAULT, *SUBSETS, *VARIATES] if len(parts) == 1 else VARIATES)


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
    if isinstance(subset, Iterable):
        members = tuple(subset)
        if all(isinstance(member, ControlVariate) for member in members):
            return "+".join(member.name for member in members) or "none", members
    raise TypeError(
        f"`subsets` must be names or tuples of control variates, got {subset!r}; try "
        "`subsets=('S7', 'c1+c7', quell.default_variates(problem))`."
    )
