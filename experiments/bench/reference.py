# SPDX-License-Identifier: Apache-2.0
"""The ELBO that runs are measured against: the optimum where it is known, else a long fit of ours."""

import dataclasses

import jax
import optax

from experiments.bench.fit_runner import FitRunner
from experiments.bench.judge import elbo_of
from experiments.bench.methods import reference_runner
from experiments.bench.optimum import best_gaussian
from experiments.bench.problems import BenchProblem
from quell.evaluation import Sampler
from quell.fit import FitOptions
from quell.fit.natural_gradient import natural_gradient
from quell.models import LinearPredictor

_NATURAL_STEPS = 4000
_NATURAL_RATE = 0.2
_STEPS = 10_000
_RATES = (0.03, 0.01)


@dataclasses.dataclass(frozen=True)
class Reference:
    """An ELBO to compare with.

    Attributes:
        elbo: in nats.
        how: it was got.
    """

    elbo: float
    how: str


def find_reference(bench: BenchProblem) -> Reference:
    """The exact optimum of a linear predictor, or the best of long fits."""
    if bench.is_exact and isinstance(bench.problem.model, LinearPredictor):
        best = best_gaussian(bench.problem.model, full_rank=bench.full_rank)
        return Reference(elbo_of(bench, best), "exact optimum by natural-gradient steps")
    return Reference(_long_fit(bench), "best ELBO seen, at least that of long fits of quell's")


def _long_fit(bench: BenchProblem) -> float:
    """The best of natural-gradient steps and of Adam, with rates that fall slowly, on all data."""
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
