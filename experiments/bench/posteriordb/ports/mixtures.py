# SPDX-License-Identifier: Apache-2.0
"""A mixture, and hidden Markov models."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints

from experiments.bench.posteriordb.ports.port import Port, flat_positive, port, same_names


def low_dim_gauss_mix(y):
    """Two normals, ordered by their means."""
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", dist.Normal(0.0, 2.0).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    with numpyro.plate("rows", y.shape[0]):
        which = dist.Categorical(probs=jnp.stack([theta, 1.0 - theta]))
        numpyro.sample("y", dist.MixtureSameFamily(which, dist.Normal(mu, sigma)), obs=y)


@port("low_dim_gauss_mix-low_dim_gauss_mix")
def _(d):
    return Port(low_dim_gauss_mix, (np.asarray(d["y"], float),), same_names("mu", "sigma", "theta"))


def positive_ordered(name):
    """Stan's `positive_ordered[2]`, without a prior: the first and the gap, each by its logarithm."""
    first = numpyro.sample(f"{name}_first", flat_positive())
    gap = numpyro.sample(f"{name}_gap", flat_positive())
    return numpyro.deterministic(name, jnp.stack([first, first + gap]))


def forward(log_emissions, transitions):
    """Log density of a hidden Markov model with a flat start; row j of the transitions leads away from state j."""
    log_transitions = jnp.log(transitions)

    def step(gamma, emission):
        return logsumexp(gamma[:, None] + log_transitions, axis=0) + emission, None

    gamma, _ = jax.lax.scan(step, log_emissions[0], log_emissions[1:])
    return logsumexp(gamma)


def hmm_example(y):
    """One output, two states, unit noise."""
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    mu = positive_ordered("mu")
    numpyro.factor("mu_prior", dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu).sum())
    emissions = dist.Normal(mu, 1.0).log_prob(jnp.asarray(y)[:, None])
    numpyro.factor("forward", forward(emissions, jnp.stack([theta1, theta2])))


@port("hmm_example-hmm_example")
def _(d):
    return Port(hmm_example, (np.asarray(d["y"], float),), same_names("theta1", "theta2", "mu"))


def hmm_drive(u, v, alpha, sds=None):
    """Drives in basketball: two outputs, exponential or normal with known standard deviations."""
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.asarray(alpha[0])))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.asarray(alpha[1])))
    prior = dist.Normal(jnp.array([0.0, 3.0]), 1.0)
    if sds is None:
        phi, lam = positive_ordered("phi"), positive_ordered("lambda")
    else:
        phi = numpyro.sample("phi", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
        lam = numpyro.sample("lambda", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("phi_prior", prior.log_prob(phi).sum())
    numpyro.factor("lambda_prior", prior.log_prob(lam).sum())
    one, two = (
        (dist.Exponential(phi), dist.Exponential(lam))
        if sds is None
        else (
            dist.Normal(phi, sds[0]),
            dist.Normal(lam, sds[1]),
        )
    )
    emissions = one.log_prob(jnp.asarray(u)[:, None]) + two.log_prob(jnp.asarray(v)[:, None])
    numpyro.factor("forward", forward(emissions, jnp.stack([theta1, theta2])))


HMM_DRIVE = same_names("theta1", "theta2", "phi", "lambda")


@port("bball_drive_event_0-hmm_drive_0")
def _(d):
    return Port(hmm_drive, tuple(np.asarray(d[name], float) for name in ("u", "v", "alpha")), HMM_DRIVE)


@port("bball_drive_event_1-hmm_drive_1")
def _(d):
    model = functools.partial(hmm_drive, sds=(float(d["tau"]), float(d["rho"])))
    return Port(model, tuple(np.asarray(d[name], float) for name in ("u", "v", "alpha")), HMM_DRIVE)
