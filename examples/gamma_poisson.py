# SPDX-License-Identifier: Apache-2.0
"""Gamma and Poisson: every way to differentiate a gamma distribution, and a fit that finds a known posterior.

Counts of two kinds, each Poisson with a rate of its own and a gamma prior. The posterior is a pair of independent
gammas, so the family `quell.Gamma` contains it. At fixed parameters, at the start of a fit and at the posterior, the
score function, the generalized and the implicit reparameterization are compared, without variates and with.

    python examples/gamma_poisson.py --out DIR
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import typer
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from jax.scipy.stats import gamma
from matplotlib.figure import Figure
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import quell
from quell import zoo

PRIOR_SHAPE, PRIOR_RATE = 2.0, 1.0
COUNTS = jnp.array([[3, 0], [1, 1], [4, 0], [2, 0], [2, 1], [5, 0]], float)
FAMILY = quell.Gamma(2)
REPLICATES = 10
BASES = {
    "score function": quell.ScoreFunction,
    "generalized": quell.GeneralizedReparameterization,
    "implicit": quell.Reparameterization,
}
PLACES = ("at the start", "at the posterior")
COLORS = ("#0072B2", "#E69F00")


class Row(NamedTuple):
    """One estimator: the variance of its gradient, without variates and with, at each place."""

    estimator: str
    plain: tuple[float, ...]
    quiet: tuple[float, ...]
    names: tuple[str, ...]


def make_model() -> quell.Model:
    """Counts with a rate for each column; the latent is the pair of rates itself, since the family is positive."""

    def log_likelihood(rates: jax.Array, counts: jax.Array) -> jax.Array:
        return jnp.sum(counts * jnp.log(rates) - rates - gammaln(counts + 1.0), axis=-1)

    def log_prior(rates: jax.Array) -> jax.Array:
        return jnp.sum(gamma.logpdf(rates, PRIOR_SHAPE, scale=1.0 / PRIOR_RATE))

    return quell.Model(log_likelihood, log_prior, COUNTS, latent=2)


def exact_posterior() -> quell.GammaParams:
    """Prior shape plus the sum of the counts, prior rate plus their number."""
    return quell.GammaParams(
        jnp.log(PRIOR_SHAPE + COUNTS.sum(axis=0)), jnp.full(2, jnp.log(PRIOR_RATE + COUNTS.shape[0]))
    )


@eqx.filter_jit
def run(gradient: quell.Gradient, params: quell.GammaParams, keys: jax.Array) -> jax.Array:
    """The gradient of each step at fixed parameters, while the weights of the variates settle."""

    def step(state: quell.GradientState, key: jax.Array) -> tuple[quell.GradientState, jax.Array]:
        loss_grad, state, _ = gradient.update(key, params, state)
        return state, ravel_pytree(loss_grad)[0]

    return jax.lax.scan(step, gradient.init(params), keys)[1]


def variances(gradient: quell.Gradient, steps: int) -> tuple[float, ...]:
    """Trace of the covariance of the gradient at each place, over the second half of the steps."""
    keys = jax.random.split(jax.random.key(0), steps)
    grads = [run(gradient, params, keys)[steps // 2 :] for params in (FAMILY.init(), exact_posterior())]
    return tuple(float(np.asarray(grad, float).var(axis=0, ddof=1).sum()) for grad in grads)
