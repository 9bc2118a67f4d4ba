# SPDX-License-Identifier: Apache-2.0
r"""Batch and match: Gaussians by score matching, written from its paper.

A batch of draws \(z_b\) of the present Gaussian with their scores \(g_b\) has means \(\bar z, \bar g\) and covariances
\(C, \Gamma\). With \(U = \lambda\Gamma + \frac{\lambda}{1+\lambda}\bar g\bar g^\top\) and
\(V = \Sigma + \lambda C + \frac{\lambda}{1+\lambda}(\mu-\bar z)(\mu-\bar z)^\top\), the next covariance solves
\(\Sigma' U \Sigma' + \Sigma' = V\), and the next mean is
\(\mu' = \frac{1}{1+\lambda}\mu + \frac{\lambda}{1+\lambda}(\Sigma'\bar g + \bar z)\).

References: Cai, Modi, Pillaud-Vivien, Margossian, Gower, Blei & Saul (2024), "Batch and match: black-box variational
inference with a score-based divergence".
"""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.bench.posteriordb.methods.base import Gaussian, Run, Unconstrained, gaussian_run
from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

STEPS, BATCH = 1_000, 32
"""The larger batch of the paper's experiments on posteriordb."""


def match(moments: tuple[jax.Array, jax.Array], z: jax.Array, scores: jax.Array, rate: Any) -> tuple[Any, Any]:
    """The next mean and covariance."""
    mean, covariance = moments
    share = rate / (1 + rate)
    at, slope = jnp.mean(z, axis=0), jnp.mean(scores, axis=0)
    spread, rough = (jnp.cov(one, rowvar=False, bias=True).reshape(covariance.shape) for one in (z, scores))
    u = rate * rough + share * jnp.outer(slope, slope)
    v = covariance + rate * spread + share * jnp.outer(mean - at, mean - at)
    root = jnp.linalg.cholesky(v)
    # V = R R', so that the solution 2 V (I + (I + 4 U V)^{1/2})^{-1} is 2 R (I + (I + 4 R' U R)^{1/2})^{-1} R'.
    values, vectors = jnp.linalg.eigh(jnp.eye(mean.size) + 4 * root.T @ u @ root)
    half = root @ vectors * jnp.sqrt(2 / (1 + jnp.sqrt(jnp.maximum(values, 1))))
    after = half @ half.T
    return mean / (1 + rate) + share * (after @ slope + at), after


def run(port: Port, key: jax.Array, watch: Stopwatch) -> Run:
    """Rates that fall as one over the steps, as the paper advises for targets that are not Gaussian."""
    start_key, run_key = jax.random.split(key)
    posterior = Unconstrained(port, start_key)
    watch.mark("read")

    def body(now: Any, step: Any) -> Any:
        number, key = step
        mean, covariance = now
        noise = jax.random.normal(key, (BATCH, posterior.dim), mean.dtype)
        z = mean + noise @ jnp.linalg.cholesky(covariance).T
        scores = jax.vmap(jax.grad(posterior.log_density))(z)
        after = match(now, z, scores, BATCH * posterior.dim / (1 + number))
        is_good = jnp.all(jnp.isfinite(after[0])) & jnp.all(jnp.isfinite(jnp.linalg.cholesky(after[1])))
        return jax.tree.map(lambda new, old: jnp.where(is_good, new, old), after, now), None

    @jax.jit
    def fit(key: jax.Array, start: tuple[jax.Array, jax.Array]) -> Gaussian:
        steps = jnp.arange(STEPS), jax.random.split(key, STEPS)
        mean, covariance = jax.lax.scan(body, start, steps)[0]
        return Gaussian(mean, jnp.linalg.cholesky(covariance))

    facts = {"steps": STEPS, "gradients": STEPS * BATCH}
    found = gaussian_run(posterior, watch, fit(run_key, posterior.mode()), facts)
    return found._replace(again=lambda key: posterior.on_the_clock(fit(key, posterior.mode()).draw(1, 1_000)))
