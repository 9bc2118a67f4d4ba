# SPDX-License-Identifier: Apache-2.0
"""Gaussian processes, exact and by basis functions."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from experiments.bench.posteriordb.ports.port import Port, port, same_names


def exp_quad(x, alpha, rho):
    """Stan's gp_exp_quad_cov."""
    return alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x[None, :]) / rho) ** 2)


def gp_regr(x, y):
    """A Gaussian process with Gaussian noise, integrated out; Stan's model has sigma, not its square, as the noise."""
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    x = jnp.asarray(x)
    cov = exp_quad(x, alpha, rho) + sigma * jnp.eye(x.shape[0])
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(x.shape[0]), cov), obs=y)


@port("gp_pois_regr-gp_regr")
def _(d):
    args = np.asarray(d["x"], float), np.asarray(d["y"], float)
    return Port(gp_regr, args, same_names("rho", "alpha", "sigma"))


def gp_pois_regr(x, k):
    """A Gaussian process behind counts, non-centred, with a jitter of 1e-10: double precision."""
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    f_tilde = numpyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
    x = jnp.asarray(x)
    cov = exp_quad(x, alpha, rho) + 1e-10 * jnp.eye(x.shape[0])
    f = numpyro.deterministic("f", jnp.linalg.cholesky(cov) @ f_tilde)
    with numpyro.plate("points", x.shape[0]):
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


@port("gp_pois_regr-gp_pois_regr")
def _(d):
    args = np.asarray(d["x"], float), np.asarray(d["k"], int)
    return Port(gp_pois_regr, args, same_names("rho", "alpha", "f"), x64=True)


def approximate_gp(basis, slambda, sdgp, lscale, zgp):
    """Brms' `gpa`: a Hilbert-space approximation in one dimension.

    The root of the spectral density is written out, because the density itself underflows where a length scale is of
    order one, and the gradient of the root of zero is NaN.
    """
    root = sdgp * jnp.sqrt(jnp.sqrt(2.0 * jnp.pi) * lscale) * jnp.exp(-0.25 * lscale**2 * slambda**2)
    return basis @ (root * zgp)


def accel_gp(basis, slambda, basis_sigma, slambda_sigma, y):
    """Motorcycle accelerations: a Gaussian process for the mean, another for the logarithm of the noise."""
    half_t = dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 36.0))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, -13.0, 36.0))
    sdgp = numpyro.sample("sdgp_1", half_t)
    lscale = numpyro.sample("lscale_1", dist.InverseGamma(1.124909, 0.0177))
    zgp = numpyro.sample("zgp_1", dist.Normal(0.0, 1.0).expand([basis.shape[1]]).to_event(1))
    intercept_sigma = numpyro.sample("Intercept_sigma", dist.StudentT(3.0, 0.0, 10.0))
    sdgp_sigma = numpyro.sample("sdgp_sigma_1", half_t)
    lscale_sigma = numpyro.sample("lscale_sigma_1", dist.InverseGamma(1.124909, 0.0177))
    zgp_sigma = numpyro.sample("zgp_sigma_1", dist.Normal(0.0, 1.0).expand([basis_sigma.shape[1]]).to_event(1))
    mu = intercept + approximate_gp(basis, slambda, sdgp, lscale, zgp)
    log_sigma = intercept_sigma + approximate_gp(basis_sigma, slambda_sigma, sdgp_sigma, lscale_sigma, zgp_sigma)
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, jnp.exp(log_sigma)), obs=y)


@port("mcycle_gp-accel_gp")
def _(d):
    wanted = ("Xgp_1", "slambda_1", "Xgp_sigma_1", "slambda_sigma_1", "Y")
    basis, slambda, basis_sigma, slambda_sigma, y = (np.asarray(d[name], float) for name in wanted)
    args = basis, slambda.reshape(-1), basis_sigma, slambda_sigma.reshape(-1), y
    mean = ("Intercept", "sdgp_1", "lscale_1", "zgp_1")
    noise = ("Intercept_sigma", "sdgp_sigma_1", "lscale_sigma_1", "zgp_sigma_1")
    return Port(accel_gp, args, same_names(*mean, *noise))
