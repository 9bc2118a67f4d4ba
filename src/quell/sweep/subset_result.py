# SPDX-License-Identifier: Apache-2.0
"""The result of all fits of one subset of variates."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from quell.diagnostics.elbo import estimate_elbo
from quell.evaluation import Problem
from quell.fit import FitResult
from quell.fit.status import Status
from quell.sweep.row import SweepRow

LARGEST_ESTIMATE = 10_000_000
"""Maximum number of likelihood evaluations for the ELBO of one fit, where it must be sampled."""

_LEAST_SAMPLES, _MOST_SAMPLES = 10, 1000


class SubsetResult(NamedTuple):
    """Final ELBOs by learning rate and seed.

    Args:
        elbos: at the end of the fits; minus infinity where they diverged.
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
        cls, results: Sequence[FitResult], problem: Problem, key: Key[Array, ""], *, num_rates: int
    ) -> "SubsetResult":
        """From the fits, all seeds of the first rate first; all see the same samples, so that their ELBOs compare."""
        num = int(np.clip(LARGEST_ESTIMATE // problem.model.num_data, _LEAST_SAMPLES, _MOST_SAMPLES))
        diverged = np.array([result.status is Status.DIVERGED for result in results])
        found = np.full((len(results), 2), (-np.inf, 0.0))
        for number in np.flatnonzero(~diverged).tolist():
            # Moved from whatever device, so that one program serves all.
            params = jax.tree.map(jnp.asarray, jax.device_get(results[number].params))
            estimate = estimate_elbo(key, problem, params, num=num)
            if np.isfinite(estimate.value):
                found[number] = estimate.value, estimate.standard_error
        shape = (num_rates, -1)
        elbos, errors = found.T
        return cls(elbos.reshape(shape), errors.reshape(shape), diverged.reshape(shape), results[0].seconds)

    def rows(self, subset: str, rates: Sequence[float]) -> list[SweepRow]:
        """One row per learning rate."""
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
