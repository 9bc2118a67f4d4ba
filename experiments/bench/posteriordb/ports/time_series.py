# SPDX-License-Identifier: Apache-2.0
"""Autoregressions, ARMA and GARCH."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from experiments.bench.posteriordb.ports.port import Port, flat, flat_positive, port, same_names


def autoregression(lags, y):
    """AR(K); row t of `lags` has y[t-1], ..., y[t-K]."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    with numpyro.plate("times", y.shape[0]):
        numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


@port("arK-arK")
def _(d):
    y, order = np.asarray(d["y"], float), int(d["K"])
    lags = np.stack([y[order - k : len(y) - k] for k in range(1, order + 1)], axis=1)
    return Port(autoregression, (lags, y[order:]), same_names("alpha", "beta", "sigma"))


def arma11(y):
    """ARMA(1, 1); the predictions come out of a scan over the errors."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    phi = numpyro.sample("phi", dist.Normal(0.0, 2.0))
    theta = numpyro.sample("theta", dist.Normal(0.0, 2.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    y = jnp.asarray(y)

    def step(error, pair):
        before, now = pair
        prediction = mu + phi * before + theta * error
        return now - prediction, prediction

    first = mu + phi * mu
    _, rest = jax.lax.scan(step, y[0] - first, (y[:-1], y[1:]))
    predictions = jnp.concatenate([first[None], rest])
    with numpyro.plate("times", y.shape[0]):
        numpyro.sample("y", dist.Normal(predictions, sigma), obs=y)


@port("arma-arma11")
def _(d):
    names = same_names("mu", "phi", "theta", "sigma")
    return Port(arma11, (np.asarray(d["y"], float),), names)


def garch11(y, first_sigma):
    """GARCH(1, 1); beta1 is flat between 0 and 1 - alpha1, as the share of it that Stan's transform has."""
    mu = numpyro.sample("mu", flat())
    alpha0 = numpyro.sample("alpha0", flat_positive())
    alpha1 = numpyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    share = numpyro.sample("beta1_share", dist.Uniform(0.0, 1.0))
    numpyro.factor("jacobian", jnp.log1p(-alpha1))
    beta1 = numpyro.deterministic("beta1", share * (1.0 - alpha1))
    y = jnp.asarray(y)

    def step(variance, before):
        variance = alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance
        return variance, variance

    start = jnp.asarray(first_sigma, y.dtype) ** 2 + 0.0 * mu
    _, rest = jax.lax.scan(step, start, y[:-1])
    sigma = jnp.sqrt(jnp.concatenate([start[None], rest]))
    with numpyro.plate("times", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


@port("garch-garch11")
def _(d):
    model = functools.partial(garch11, first_sigma=float(d["sigma1"]))
    return Port(model, (np.asarray(d["y"], float),), same_names("mu", "alpha0", "alpha1", "beta1"))
