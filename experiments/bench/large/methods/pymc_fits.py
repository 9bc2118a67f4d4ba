# SPDX-License-Identifier: Apache-2.0
"""Deterministic ADVI of pymc-extras, on NumPyro's density as one potential of a flat vector."""

from typing import Any

import jax
import numpy as np

from experiments.bench.large.methods.base import Clock, Found, Look
from experiments.bench.large.models import LargeModel
from experiments.bench.posteriordb.methods.base import Unconstrained, seed_of
from experiments.bench.posteriordb.methods.pymc_fits import fit_dadvi
from experiments.bench.posteriordb.ports.port import Port

DRAWS = 10_000
"""Whose moments are those of the fit, for all that the library returns are draws: their noise costs a tenth of a nat
for each 1,000 coordinates."""


def dadvi(large: LargeModel, key: jax.Array, clock: Clock, setting: dict[str, Any]) -> Found:
    """`pymc_extras.fit` at its defaults: 30 fixed draws, Newton with conjugate gradients."""
    posterior = Unconstrained(Port(lambda: large.model(**large.data), (), {}), key)
    draws = np.asarray(fit_dadvi(posterior, seed_of(key), DRAWS))
    return Found([Look(clock.now, draws.mean(0), draws.std(0))], {"status": "completed"})
