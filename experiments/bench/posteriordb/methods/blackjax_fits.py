# SPDX-License-Identifier: Apache-2.0
"""BlackJAX: variational inference with Adam, and single-path Pathfinder, on NumPyro's unconstrained density."""

import functools
from typing import Any

import blackjax.vi.pathfinder as pathfinder_module
import jax
import numpy as np
import optax
from blackjax.vi import fullrank_vi, meanfield_vi

from experiments.bench.posteriordb.methods.base import NUM_DRAWS, NUM_EVALUATED, Fitted, Run, Unconstrained
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

STEPS, RATE, SAMPLES = 5_000, 0.01, 10
"""The documentation's example has Adam and ten samples; steps and rate are those of NumPyro's."""


def vi(port: Port, key: jax.Array, watch: Stopwatch, module: Any) -> Run:
    """All steps in one compiled loop."""
    start_key, run_key = jax.random.split(key)
    posterior = Unconstrained(port, start_key)
    watch.mark("read")
    optimizer = optax.adam(RATE)

    @jax.jit
    def fit(key: jax.Array, start: jax.Array) -> Any:
        def body(state: Any, key: jax.Array) -> Any:
            return module.step(key, state, posterior.log_density, optimizer, SAMPLES)[0], None

        return jax.lax.scan(body, module.init(start, optimizer), jax.random.split(key, STEPS))[0]

    state = jax.block_until_ready(fit(run_key, posterior.start))
    watch.mark("fit")
    posterior.on_the_clock(module.sample(jax.random.key(1), state, NUM_DRAWS))
    watch.mark("draws")

    def evaluate() -> Fitted:
        is_finite = bool(np.all(np.isfinite(state.mu)))
        facts = {"status": "completed" if is_finite else "not finite", "steps": STEPS, "gradients": STEPS * SAMPLES}
        return Fitted(posterior.draws(module.sample(jax.random.key(2), state, NUM_EVALUATED)), facts)

    def again(key: jax.Array) -> None:
        state = fit(key, posterior.start)
        posterior.on_the_clock(module.sample(jax.random.key(1), state, NUM_DRAWS))

    return Run(evaluate, again)


def pathfinder(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """At its defaults, with at most 100 steps of L-BFGS."""
    start_key, path_key = jax.random.split(key)
    posterior = Unconstrained(port, start_key)
    watch.mark("read")
    approximate = jax.jit(lambda k, z: pathfinder_module.approximate(k, posterior.log_density, z, maxiter=100))
    state, path = jax.block_until_ready(approximate(path_key, posterior.start))
    watch.mark("fit")

    def draw(state: Any, seed: int, num: int) -> Any:
        return pathfinder_module.sample(jax.random.key(seed), state, num)[0]

    posterior.on_the_clock(draw(state, 1, NUM_DRAWS))
    watch.mark("draws")

    def evaluate() -> Fitted:
        elbo, steps = float(state.elbo), int(np.sum(np.isfinite(np.asarray(path.path.elbo))))
        status = "completed" if np.isfinite(elbo) else "no point of the path has a finite ELBO"
        return Fitted(posterior.draws(draw(state, 2, NUM_EVALUATED)), {"status": status, "steps": steps, "elbo": elbo})

    def again(key: jax.Array) -> None:
        posterior.on_the_clock(draw(approximate(key, posterior.start)[0], 1, NUM_DRAWS))

    return Run(evaluate, again)


full_rank = functools.partial(vi, module=fullrank_vi)
mean_field = functools.partial(vi, module=meanfield_vi)
