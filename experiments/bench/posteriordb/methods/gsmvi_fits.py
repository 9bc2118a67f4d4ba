# SPDX-License-Identifier: Apache-2.0
"""Gaussian score matching by its authors' package, `gsmvi`, at its defaults, from the mode."""

import jax
import jax.numpy as jnp
import numpy as np
from gsmvi.gsm import GSM

from experiments.bench.posteriordb.methods.base import Gaussian, Run, Unconstrained, gaussian_run, seed_of
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

STEPS, BATCH = 5_000, 2


def run(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """A loop in Python, as the package has it."""
    posterior = Unconstrained(port, key)
    watch.mark("read")
    score = jax.jit(jax.vmap(jax.grad(posterior.log_density)))
    matcher = GSM(posterior.dim, posterior.log_density, score)

    def fit(seed: int) -> Gaussian:
        start, spread = posterior.mode()
        mean, covariance = matcher.fit(
            jax.random.PRNGKey(seed), mean=start, cov=spread, batch_size=BATCH, niter=STEPS, verbose=False
        )
        return Gaussian(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(np.asarray(covariance, float))))

    found = gaussian_run(posterior, watch, fit(seed_of(key)), {"steps": STEPS, "gradients": STEPS * BATCH})
    return found._replace(again=lambda key: posterior.on_the_clock(fit(seed_of(key)).draw(1, 1_000)))
