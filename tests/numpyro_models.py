# SPDX-License-Identifier: Apache-2.0
"""NumPyro models with data, as users write them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.reparam import LocScaleReparam


class Case(NamedTuple):
    """A model and the arguments it is called with."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = MappingProxyType({})


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", 8):
        with numpyro.handlers.reparam(config={"theta": LocScaleReparam(0)}):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def centred_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("school", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def varying_intercepts(group, x, y=None, num_groups=5):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.Exponential(1.0))
    with numpyro.plate("groups", num_groups):
        intercept = numpyro.sample("intercept", dist.Normal(mean, spread))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Normal(intercept[group] + slope * x, noise), obs=y)


def student_t(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    df = numpyro.sample("df", dist.Gamma(2.0, 0.1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.StudentT(df, x @ weights, scale), obs=y)


def network(x, y=None, width=5):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([x.shape[1], width]).to_event(2))
    second = numpyro.sample("second", dist.Normal(0.0, 1.0).expand([width]).to_event(1))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    mean = numpyro.deterministic("mean", jnp.tanh(x @ first) @ second)
    numpyro.sample("y", dist.Normal(mean, 1.0 / jnp.sqrt(precision)), obs=y)


def logistic(x, y=None, subsample_size=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    bias = numpyro.sample("bias", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", x.shape[0], subsample_size=subsample_size):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights + bias), obs=y)


SIGMA = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
SCHOOLS = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
_X, _NOISE = jax.random.normal(jax.random.key(0), (2, 40, 3))
_GROUP = jnp.arange(40) % 5

CASES = {
    "eight schools": Case(eight_schools, (SIGMA,), {"y": SCHOOLS}),
    "varying intercepts": Case(
        varying_intercepts, (_GROUP, _X[:, 0]), {"y": 0.5 * _GROUP + _X[:, 0] + 0.5 * _NOISE[:, 0]}
    ),
    "student t": Case(student_t, (_X,), {"y": _X @ jnp.array([1.0, -1.0, 0.5]) + 0.3 * _NOISE[:, 0]}),
    "network": Case(network, (_X[:, :2],), {"y": jnp.sin(2.0 * _X[:, 0]) + 0.1 * _NOISE[:, 0]}),
}
"""The four models that the adapter must get right."""

LABELS = (_X @ jnp.array([2.0, -1.0, 0.0]) + _NOISE[:, 0] > 0).astype(int)
LOGISTIC = Case(logistic, (_X, LABELS))
SUBSAMPLED = Case(logistic, (_X, LABELS), {"subsample_size": 8})
CENTRED = Case(centred_schools, (SIGMA,), {"y": SCHOOLS})
