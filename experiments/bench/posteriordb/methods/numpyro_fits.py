# SPDX-License-Identifier: Apache-2.0
"""NumPyro: SVI as its documentation shows it, the best of a small search, Laplace, and NUTS."""

import functools
import itertools
import time
from typing import Any

import jax
import numpy as np
import numpyro
import optax
from numpyro import infer
from numpyro.infer import autoguide

from experiments.bench.posteriordb.methods.base import (
    NUM_DRAWS,
    NUM_EVALUATED,
    Fitted,
    Run,
    as_arrays,
    with_deterministic,
)
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

STEPS, RATE = 5_000, 0.01
"""Of the documentation's examples."""

SEARCHED_STEPS, SEARCHED_RATES = (5_000, 20_000), (0.003, 0.03)
"""Of the search; rates fall to zero along a cosine."""


def svi(port: Port, key: jax.Array, watch: Stopwatch, guide_class: Any, steps: int = STEPS, rate: Any = RATE) -> Run:
    """Adam with one sample."""
    guide = guide_class(port.model)
    loop = infer.SVI(port.model, guide, numpyro.optim.Adam(rate), infer.Trace_ELBO())

    def fit(key: jax.Array) -> Any:
        return jax.block_until_ready(loop.run(key, steps, *port.args, progress_bar=False))

    result = fit(key)
    watch.mark("fit")

    def draw(result: Any, seed: int, num: int) -> dict[str, Any]:
        one, two = jax.random.split(jax.random.key(seed))
        found = guide.sample_posterior(one, result.params, sample_shape=(num,))
        return with_deterministic(port, found, two)

    as_arrays(draw(result, 1, NUM_DRAWS), port)
    watch.mark("draws")

    def evaluate() -> Fitted:
        losses = np.asarray(result.losses)
        facts: dict[str, Any] = {"status": "completed", "steps": steps, "gradients": steps}
        if guide_class is not autoguide.AutoLaplaceApproximation:
            loss: Any = infer.Trace_ELBO(num_particles=1000)
            facts["elbo"] = -float(loss.loss(jax.random.key(3), result.params, port.model, guide, *port.args))
        if not np.isfinite(losses[-1]):
            facts["status"] = f"not finite from step {int(np.argmax(~np.isfinite(losses)))}"
        return Fitted(draw(result, 2, NUM_EVALUATED), facts)

    def again(key: jax.Array) -> None:
        as_arrays(draw(fit(key), 1, NUM_DRAWS), port)

    return Run(evaluate, again)


def searched_svi(port: Port, key: jax.Array, watch: Stopwatch, guide_class: Any) -> Run:
    """The setting of the highest ELBO, and the seconds that it would have taken by itself.

    The first fit of a process also compiles what all settings share: what it takes longer than a second fit is added to
    the seconds of the best setting.
    """
    best, shared = None, None
    for steps, rate in itertools.product(SEARCHED_STEPS, SEARCHED_RATES):
        watch.restart()
        found = svi(port, key, watch, guide_class, steps, optax.cosine_decay_schedule(rate, steps))
        watch.stop()
        if shared is None:
            began, first = time.perf_counter(), watch.total or 0.0
            svi(port, key, watch, guide_class, steps, optax.cosine_decay_schedule(rate, steps))
            shared = first - (time.perf_counter() - began)
        fitted = found.evaluate()
        elbo = fitted.facts.get("elbo", -np.inf)
        if best is None or elbo > best[0]:
            told = {**fitted.facts, "setting": f"{steps} steps, Adam from {rate:g} along a cosine"}
            best = elbo, Fitted(fitted.draws, told), found.again, (watch.total or 0.0) + (shared if best else 0.0)
    assert best is not None
    _, fitted, again, watch.total = best
    watch.stages.clear()  # which are of the last setting
    return Run(lambda: fitted, again)


def nuts(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """One chain, 1,000 steps of warm-up."""
    mcmc = infer.MCMC(infer.NUTS(port.model), num_warmup=1000, num_samples=NUM_DRAWS, progress_bar=False)
    mcmc.run(key, *port.args, extra_fields=("num_steps", "diverging"))
    draws, extra = as_arrays(mcmc.get_samples(), port), mcmc.get_extra_fields()
    watch.mark("fit")

    def evaluate() -> Fitted:
        leapfrogs = int(np.sum(extra["num_steps"]))
        facts = {
            "status": "completed",
            "steps": 2000,
            "gradients": 2 * leapfrogs,  # the warm-up taken to be as long as the draws
            "divergences": int(np.sum(extra["diverging"])),
            "leapfrogs_per_draw": round(leapfrogs / NUM_DRAWS, 1),
        }
        return Fitted(draws, facts)

    def again(key: jax.Array) -> None:
        mcmc.run(key, *port.args, extra_fields=("num_steps", "diverging"))
        as_arrays(mcmc.get_samples(), port)

    return Run(evaluate, again)


full_rank = functools.partial(svi, guide_class=autoguide.AutoMultivariateNormal)
mean_field = functools.partial(svi, guide_class=autoguide.AutoNormal)
laplace = functools.partial(svi, guide_class=autoguide.AutoLaplaceApproximation)
searched = functools.partial(searched_svi, guide_class=autoguide.AutoMultivariateNormal)
