# SPDX-License-Identifier: Apache-2.0
"""The ELBO of a fitted Gaussian: exact where the model allows it, else from common random numbers."""

import math
import time

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from experiments.bench.gaussian import Gaussian, isotropic, params_of
from experiments.bench.problems import BenchProblem
from quell.core.compilation import quick_jit
from quell.diagnostics.densities import DATA_CHUNK
from quell.diagnostics.elbo import exact_elbo_in_chunks
from quell.evaluation import Evaluation, Problem, Sampler, exact_elbo
from quell.families import LocationScale
from quell.gradient import BaseGradient

NUM_DRAWS = 4000
_KEY = 20181202


def elbo_of(bench: BenchProblem, gaussian: Gaussian) -> float:
    r"""The ELBO in nats; minus infinity for a Gaussian that is not finite.

    For a linear predictor it is exact. Otherwise it is the average of \(\log p(x, z) - \log q(z)\) over 4,000 draws
    with one fixed noise, so that most of the error cancels in a difference of two ELBOs.
    """
    params = params_of(gaussian)
    if not all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in params):
        return -math.inf
    value = _exact(bench, params) if bench.is_exact else float(_sampled(bench.problem, params, jax.random.key(_KEY)))
    return value if math.isfinite(value) else -math.inf


def elbo_seconds(bench: BenchProblem) -> float:
    """Seconds of one evaluation of the ELBO: the better of two, after compilation."""
    here, times = isotropic(bench.start, 0.1, full_rank=bench.full_rank), []
    for _ in range(3):
        began = time.perf_counter()
        elbo_of(bench, here)
        times.append(time.perf_counter() - began)
    return min(times[1:])


@quick_jit
def _sampled(problem: Problem, params: LocationScale, key: Key[Array, ""]) -> Float[Array, ""]:
    """The log density of q is computed from the noise, which is stable where the scale is nearly singular."""
    draw = Sampler(NUM_DRAWS).draw(key, problem.family, problem.model.num_data, params.loc.dtype)
    return BaseGradient().elbo(Evaluation(problem, params, draw))


_exact_at_once = quick_jit(exact_elbo)


def _exact(bench: BenchProblem, params: LocationScale) -> float:
    if bench.num_data <= DATA_CHUNK:
        return float(_exact_at_once(bench.problem, params))
    return exact_elbo_in_chunks(bench.problem, params).value
