# SPDX-License-Identifier: Apache-2.0
"""The ELBO that runs are compared with: the exact optimum where it is known, else that of long fits."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.bench.elbo import elbo_of
from experiments.bench.fit_runner import FitRunner
from experiments.bench.gaussian import Gaussian
from experiments.bench.methods import reference_runner
from experiments.bench.problems import BenchProblem
from experiments.common.optimum import find_optimum
from quell.evaluation import Sampler
from quell.fit import FitOptions
from quell.fit.natural_gradient import natural_gradient

_NUM_NODES = 20
_TOLERANCE = 1e-7
_NATURAL_STEPS = 4000
_NATURAL_RATE = 0.2
_STEPS = 10_000
_RATES = (0.03, 0.01)


@dataclasses.dataclass(frozen=True)
class Reference:
    """An ELBO to compare with.

    Attributes:
        elbo: in nats.
        how: where it comes from.
    """

    elbo: float
    how: str


def find_reference(bench: BenchProblem) -> Reference:
    """The exact optimum where there is one, or the best of long fits."""
    if bench.is_exact:
        return Reference(elbo_of(bench, best_gaussian(bench)), "exact optimum by natural-gradient steps")
    return Reference(_long_fit(bench), "best ELBO seen, at least that of long fits of quell's")


def best_gaussian(bench: BenchProblem) -> Gaussian:
    """The optimum of a generalized linear model, to single precision."""
    model: Any = bench.problem.model  # a linear predictor, whose ELBO is exact
    options = {"full_rank": bench.full_rank, "num_nodes": _NUM_NODES, "tolerance": _TOLERANCE}
    rows = (np.asarray(array) for array in (model.data.features, model.data.targets))
    found = find_optimum(model.log_density, *rows, **options)
    scale = np.linalg.cholesky(found.covariance) if bench.full_rank else np.sqrt(np.diagonal(found.covariance))
    return Gaussian(jnp.asarray(found.mean), jnp.asarray(scale))


def _long_fit(bench: BenchProblem) -> float:
    """The best of natural-gradient steps and of Adam, with slowly decaying rates, on all data."""
    falling = optax.cosine_decay_schedule(_NATURAL_RATE, _NATURAL_STEPS)
    optimizer = natural_gradient(bench.problem, falling)
    natural = FitRunner(bench, FitOptions(optimizer=optimizer, sampler=Sampler(20)))
    reached = natural.advance(natural.start(jax.random.key(0), bench.start, {}), _NATURAL_STEPS)
    elbos = [elbo_of(bench, natural.gaussian(reached))]
    runner = reference_runner(bench)
    for rate in _RATES:
        state = runner.start(jax.random.key(0), bench.start, {"rate": rate, "length": _STEPS, "scale": 0.1})
        elbos.append(elbo_of(bench, runner.gaussian(runner.advance(state, _STEPS))))
    return max(elbos)
