# SPDX-License-Identifier: Apache-2.0
"""Models whose likelihood solves a differential equation."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.ode import odeint

from experiments.bench.posteriordb.ports.port import Port, port, same_names


def lotka_volterra(times, y):
    """Hares and lynxes; row 0 of y is at time 0."""
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(loc, scale, low=0.0).to_event(1))
    z_init = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))

    def dz_dt(z, t, theta):
        u, v = z[0], z[1]
        return jnp.stack([(theta[0] - theta[1] * v) * u, (-theta[2] + theta[3] * u) * v])

    z = odeint(dz_dt, z_init, jnp.asarray(times), theta, rtol=1e-5, atol=1e-3, mxstep=500)
    with numpyro.plate("times", y.shape[0]):
        numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma).to_event(1), obs=y)


@port("hudson_lynx_hare-lotka_volterra")
def _(d):
    times = np.concatenate([[0.0], np.asarray(d["ts"], float)])
    y = np.concatenate([np.asarray(d["y_init"], float)[None], np.asarray(d["y"], float)])
    return Port(lotka_volterra, (times, y), same_names("theta", "z_init", "sigma"))


def one_comp_mm_elim_abs(times, c_hat, dose, volume):
    """One compartment with first-order absorption and Michaelis-Menten elimination, from 0 at time 0."""
    k_a = numpyro.sample("k_a", dist.HalfCauchy(1.0))
    k_m = numpyro.sample("K_m", dist.HalfCauchy(1.0))
    v_m = numpyro.sample("V_m", dist.HalfCauchy(1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))

    def dc_dt(c, t, k_a, k_m, v_m):
        return jnp.exp(-k_a * t) * dose * k_a / volume - (v_m / volume) * c / (k_m + c)

    at = jnp.concatenate([jnp.zeros(1), jnp.asarray(times)])
    c = odeint(dc_dt, jnp.zeros(()), at, k_a, k_m, v_m, rtol=1e-6, atol=1e-6)[1:]
    with numpyro.plate("times", c_hat.shape[0]):
        numpyro.sample("c_hat", dist.LogNormal(jnp.log(c), sigma), obs=c_hat)


@port("one_comp_mm_elim_abs-one_comp_mm_elim_abs")
def _(d):
    model = functools.partial(one_comp_mm_elim_abs, dose=float(d["D"]), volume=float(d["V"]))
    assert d["t0"] == 0
    names = same_names("k_a", "K_m", "V_m", "sigma")
    return Port(model, (np.asarray(d["times"], float), np.asarray(d["C_hat"], float)), names)
