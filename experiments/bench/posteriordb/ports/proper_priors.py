# SPDX-License-Identifier: Apache-2.0
"""Linear regressions with proper priors, and eight schools."""

import functools

import numpy as np
import numpyro
import numpyro.distributions as dist

from experiments.bench.posteriordb.ports.port import Port, flat_positive, port, same_names
from experiments.bench.posteriordb.ports.regressions import REGRESSION


def blr(x, y):
    """Bayesian linear regression: beta ~ normal(0, 10), sigma ~ half-normal(10)."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ beta, sigma), obs=y)


def _blr(d):
    return Port(blr, (np.asarray(d["X"], float), np.asarray(d["y"], float)), REGRESSION)


port("sblrc-blr")(_blr)
port("sblri-blr")(_blr)


def kilpisjarvi(x, y, alpha_prior, beta_prior):
    """Summer temperatures in Kilpisjärvi against the year, not centred."""
    alpha = numpyro.sample("alpha", dist.Normal(*alpha_prior))
    beta = numpyro.sample("beta", dist.Normal(*beta_prior))
    sigma = numpyro.sample("sigma", flat_positive())
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)


@port("kilpisjarvi_mod-kilpisjarvi")
def _(d):
    x, y = np.asarray(d["x"], float), np.asarray(d["y"], float)
    priors = (float(d["pmualpha"]), float(d["psalpha"])), (float(d["pmubeta"]), float(d["psbeta"]))
    model = functools.partial(kilpisjarvi, alpha_prior=priors[0], beta_prior=priors[1])
    return Port(model, (x, y), same_names("alpha", "beta", "sigma"))


def diamonds(x, y):
    """Brms: centred features, b ~ normal(0, 1), Student-t priors on intercept and noise."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + x @ b, sigma), obs=y)


@port("diamonds-diamonds")
def _(d):
    x = np.asarray(d["X"], float)[:, 1:]
    x = x - x.mean(axis=0)
    return Port(diamonds, (x, np.asarray(d["Y"], float)), same_names("b", "Intercept", "sigma"))


def eight_schools(sigma, y):
    """Non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([y.shape[0]]).to_event(1))
    theta = numpyro.deterministic("theta", trans * tau + mu)
    with numpyro.plate("schools", y.shape[0]):
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


@port("eight_schools-eight_schools_noncentered")
def _(d):
    args = np.asarray(d["sigma"], float), np.asarray(d["y"], float)
    return Port(eight_schools, args, same_names("theta", "mu", "tau"))
