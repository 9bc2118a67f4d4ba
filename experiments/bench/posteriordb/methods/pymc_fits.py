# SPDX-License-Identifier: Apache-2.0
"""PyMC: ADVI, and deterministic ADVI of pymc-extras, on NumPyro's density as one potential of a flat vector."""

import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from pytensor import wrap_jax

from experiments.bench.posteriordb.methods.base import NUM_DRAWS, NUM_EVALUATED, Fitted, Run, Unconstrained, seed_of
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

STEPS = 10_000
"""The default of `pm.fit`."""


def _model(posterior: Unconstrained) -> Any:
    with pm.Model() as model:
        z = pm.Flat("z", shape=posterior.dim, initval=np.asarray(posterior.start))
        pm.Potential("density", wrap_jax(posterior.log_density)(z))
    return model


def advi(port: Port, key: jax.Array, watch: Stopwatch, method: str) -> Run:
    """`pm.fit` at its defaults."""
    posterior = Unconstrained(port, key)
    watch.mark("read")
    logging.getLogger("pymc").setLevel(logging.ERROR)

    def fit(seed: int) -> Any:
        with _model(posterior):
            return pm.fit(n=STEPS, method=method, random_seed=seed, progressbar=False)

    def draw(found: Any, num: int) -> jax.Array:
        sampled = found.sample(num, return_inferencedata=False, random_seed=1)
        return jnp.asarray(sampled["z"], posterior.start.dtype)

    found = fit(seed_of(key))
    watch.mark("fit")
    posterior.on_the_clock(draw(found, NUM_DRAWS))
    watch.mark("draws")

    def evaluate() -> Fitted:
        facts = {"status": "completed", "steps": STEPS, "gradients": STEPS}
        return Fitted(posterior.draws(draw(found, NUM_EVALUATED)), facts)

    return Run(evaluate, lambda key: posterior.on_the_clock(draw(fit(seed_of(key)), NUM_DRAWS)))


def dadvi(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """`pymc_extras.fit` at its defaults: 30 fixed draws, Newton with conjugate gradients."""
    posterior = Unconstrained(port, key)
    watch.mark("read")
    posterior.on_the_clock(fit_dadvi(posterior, seed_of(key), NUM_DRAWS))
    watch.mark("fit")

    def evaluate() -> Fitted:
        return Fitted(posterior.draws(fit_dadvi(posterior, seed_of(key), NUM_EVALUATED)), {"status": "completed"})

    return Run(evaluate, lambda key: posterior.on_the_clock(fit_dadvi(posterior, seed_of(key), NUM_DRAWS)))


def fit_dadvi(posterior: Unconstrained, seed: int, num: int) -> jax.Array:
    """Draws of the flat vector, which are all that the library returns."""
    import pymc_extras

    logging.getLogger("pymc").setLevel(logging.ERROR)
    with _model(posterior):
        found = pymc_extras.fit(method="dadvi", n_draws=num, random_seed=seed, progressbar=False)
    return jnp.asarray(found.posterior["z"].to_numpy().reshape(-1, posterior.dim), posterior.start.dtype)


mean_field = functools.partial(advi, method="advi")
full_rank = functools.partial(advi, method="fullrank_advi")
