# SPDX-License-Identifier: Apache-2.0
"""nutpie's NUTS on NumPyro's density, compiled by JAX."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import nutpie
from nutpie.compiled_pyfunc import from_pyfunc

from experiments.bench.posteriordb.methods.base import NUM_DRAWS, Fitted, Run, Unconstrained, as_arrays, seed_of
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch


def run(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """One chain at its defaults."""
    posterior = Unconstrained(port, key)
    watch.mark("read")
    value_and_grad = jax.jit(jax.value_and_grad(posterior.log_density))

    def log_density(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = value_and_grad(jnp.asarray(z, posterior.start.dtype))
        return float(value), np.asarray(grad, float)

    compiled = from_pyfunc(
        posterior.dim,
        lambda: log_density,
        lambda *_: lambda z: {"z": np.asarray(z, float)},
        [np.dtype(float)],
        [(posterior.dim,)],
        ["z"],
        make_initial_point_fn=lambda seed: np.asarray(posterior.start, float),
    )

    def fit(seed: int) -> tuple[dict[str, Any], Any]:
        found: Any = nutpie.sample(compiled, chains=1, cores=1, draws=NUM_DRAWS, seed=seed, progress_bar=False)
        z = jnp.asarray(found.posterior["z"].to_numpy().reshape(-1, posterior.dim), posterior.start.dtype)
        return as_arrays(posterior.draws(z), port), found

    draws, found = fit(seed_of(key))
    watch.mark("fit")

    def evaluate() -> Fitted:
        steps = [group["n_steps"].to_numpy().sum() for group in (found.sample_stats, found.warmup_sample_stats)]
        divergences = int(found.sample_stats["diverging"].to_numpy().sum())
        return Fitted(draws, {"status": "completed", "gradients": int(sum(steps)), "divergences": divergences})

    return Run(evaluate, lambda key: fit(seed_of(key)))
