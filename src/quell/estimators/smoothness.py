# SPDX-License-Identifier: Apache-2.0
"""Whether second derivatives tell the truth: where a gradient jumps, they miss the jumps."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.compilation import quick_jit
from quell.problem import Problem

NUM_SAMPLES = 256
NUM_ERRORS = 6.0
"""Standard errors of the mean that are still taken for chance."""

ROWS = 2000
"""Rows of the data that are looked at."""


def has_price_theorem(problem: Problem, params: PyTree, key: Key[Array, ""]) -> bool:
    r"""Whether the curvature of the log joint agrees with the changes of its gradient, under \(q\).

    For \(z = \mu + \delta\) and \(\delta, u \sim N(0, \Sigma)\), with a gradient \(g\) and a Hessian \(H\), both

    $$\tfrac12 \delta^\top (g(\mu + \delta) - g(\mu - \delta)) - \delta^\top H(\mu)\, \delta
    \qquad\text{and}\qquad
    \tfrac12 u^\top (H(\mu + \delta) + H(\mu - \delta))\, u - u^\top H(\mu)\, u$$

    have the mean \(\mathrm{tr}((E[H] - H(\mu))\Sigma)\) if \(g\) is continuous, and little noise if the density is near
    a Gaussian. If \(g\) jumps, the first sees the jumps, and the second does not.

    Args:
        problem: model and a Gaussian family.
        params: of \(q\).
        key: for the latents.

    Cost: 256 pairs of gradients, and four products with a Hessian for each, on at most 2000 rows.
    """
    index = np.linspace(0, problem.model.num_data - 1, min(ROWS, problem.model.num_data)).astype(int)
    rows = jax.tree.map(lambda x: x[index], problem.model.data)
    found = np.asarray(_differences(problem, params, rows, key), float)
    error = found.std(ddof=1) / math.sqrt(found.size)
    return bool(np.isfinite(found).all() and abs(found.mean()) <= NUM_ERRORS * error + 1e-4 * np.abs(found).max())


@quick_jit
def _differences(problem: Problem, params: PyTree, rows: PyTree, key: Key[Array, ""]) -> Float[Array, "sample"]:
    family, model = problem.family, problem.model
    mean = family.mean(params)
    factor = model.num_data / jax.tree.leaves(rows)[0].shape[0]

    def log_joint(z: Float[Array, "latent"]) -> Float[Array, ""]:
        return factor * jnp.sum(model.log_likelihood(z, rows)) + model.prior.log_prob(z)

    grad = jax.grad(log_joint)

    def bend(z: Float[Array, "latent"], along: Float[Array, "latent"]) -> Float[Array, ""]:
        return along @ jax.jvp(grad, (z,), (along,))[1]

    def difference(steps: Float[Array, "two latent"]) -> Float[Array, ""]:
        one, two = steps
        by_gradient = 0.5 * one @ (grad(mean + one) - grad(mean - one)) - bend(mean, one)
        by_hessian = 0.5 * (bend(mean + one, two) + bend(mean - one, two)) - bend(mean, two)
        return by_gradient - by_hessian

    noise = family.noise(key, 2 * NUM_SAMPLES, mean.dtype)
    steps = family.particles(params, noise).latents(family.sampling) - mean
    return jax.lax.map(difference, steps.reshape(NUM_SAMPLES, 2, -1), batch_size=32)
