# SPDX-License-Identifier: Apache-2.0
"""Models as users of PyMC write them, each with a twin in NumPyro, on the same data and under the same names."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytensor.tensor as pt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
GROUP = np.arange(40) % 5
REAL = 1 + X @ np.array([0.5, -1.0]) + 0.3 * RNG.normal(size=5)[GROUP] + 0.4 * RNG.normal(size=40)
COUNT = RNG.poisson(np.exp(0.3 + 0.4 * X[:, 0]))
BINARY = (RNG.uniform(size=40) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
POSITIVE = RNG.gamma(2.0, np.exp(0.2 * X[:, 0]))
ENDED = np.arange(40) % 4 > 0
LEVEL = np.digitize(X[:, 0] + RNG.logistic(size=40), [-1.0, 1.0])
KIND = RNG.choice(3, size=40, p=[0.5, 0.3, 0.2])
PAIRS = RNG.multivariate_normal([0.5, -0.5], [[1.0, 0.6], [0.6, 2.0]], size=40)
LUMPS = np.concatenate([RNG.normal(-2, 0.5, size=20), RNG.normal(2, 0.8, size=30)])
WALK = np.cumsum(0.3 * RNG.normal(size=15)) + 0.2 * RNG.normal(size=15)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

MODELS = {}
"""By name, the function that builds a model in PyMC and its twin."""


def pair(twin):
    """Keep a PyMC model, which the function that is decorated builds, with its twin."""

    def keep(build):
        MODELS[build.__name__] = (build, twin)
        return build

    return keep


def normal(name, scale=1.0, size=None):
    """A latent of NumPyro."""
    prior = dist.Normal(0, scale)
    return numpyro.sample(name, prior if size is None else prior.expand([size]).to_event(1))


def linear_twin():
    a, b, s = normal("a", 5.0), normal("b", 2.0, 2), numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(a + X @ b, s), obs=REAL)


@pair(linear_twin)
def linear():
    a, b, s = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 1)
    pm.Normal("y", a + X @ b, s, observed=REAL)


def logistic_twin():
    numpyro.sample("y", dist.Bernoulli(logits=normal("a") + X @ normal("b", 1.0, 2)), obs=BINARY)


@pair(logistic_twin)
def logistic():
    pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 1) + X @ pm.Normal("b", 0, 1, shape=2), observed=BINARY)


def poisson_twin():
    numpyro.sample("y", dist.Poisson(jnp.exp(normal("a") + X @ normal("b", 1.0, 2))), obs=COUNT)


@pair(poisson_twin)
def poisson():
    pm.Poisson("y", pm.math.exp(pm.Normal("a", 0, 1) + X @ pm.Normal("b", 0, 1, shape=2)), observed=COUNT)


def negative_binomial_twin():
    mean = jnp.exp(normal("a") + X @ normal("b", 1.0, 2))
    numpyro.sample("y", dist.NegativeBinomial2(mean, numpyro.sample("k", dist.Exponential(1.0))), obs=COUNT)


@pair(negative_binomial_twin)
def negative_binomial():
    mean = pm.math.exp(pm.Normal("a", 0, 1) + X @ pm.Normal("b", 0, 1, shape=2))
    pm.NegativeBinomial("y", mu=mean, alpha=pm.Exponential("k", 1.0), observed=COUNT)


def robust_twin():
    mean, s = normal("a", 5.0) + X @ normal("b", 2.0, 2), numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("y", dist.StudentT(numpyro.sample("nu", dist.Gamma(2.0, 0.1)), mean, s), obs=REAL)


@pair(robust_twin)
def robust():
    mean, s = pm.Normal("a", 0, 5) + X @ pm.Normal("b", 0, 2, shape=2), pm.HalfNormal("s", 1)
    pm.StudentT("y", nu=pm.Gamma("nu", 2.0, 0.1), mu=mean, sigma=s, observed=REAL)


def centred_twin():
    m, t, s = normal("m", 5.0), numpyro.sample("t", dist.HalfNormal(1)), numpyro.sample("s", dist.HalfNormal(1))
    g = numpyro.sample("g", dist.Normal(m, t).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(g[GROUP] + X @ normal("b", 2.0, 2), s), obs=REAL)


@pair(centred_twin)
def centred():
    m, t, s = pm.Normal("m", 0, 5), pm.HalfNormal("t", 1), pm.HalfNormal("s", 1)
    g = pm.Normal("g", m, t, shape=5)
    pm.Normal("y", g[GROUP] + X @ pm.Normal("b", 0, 2, shape=2), s, observed=REAL)


def non_centred_twin():
    m, t, s = normal("m", 5.0), numpyro.sample("t", dist.HalfNormal(1)), numpyro.sample("s", dist.HalfNormal(1))
    g = m + t * normal("g", 1.0, 5)
    numpyro.sample("y", dist.Normal(g[GROUP] + X @ normal("b", 2.0, 2), s), obs=REAL)


@pair(non_centred_twin)
def non_centred():
    m, t, s = pm.Normal("m", 0, 5), pm.HalfNormal("t", 1), pm.HalfNormal("s", 1)
    g = pm.Deterministic("group", m + t * pm.Normal("g", 0, 1, shape=5))
    pm.Normal("y", g[GROUP] + X @ pm.Normal("b", 0, 2, shape=2), s, observed=REAL)


def schools_twin():
    m, t, g = normal("m", 5.0), numpyro.sample("t", dist.HalfCauchy(5)), normal("g", 1.0, 8)
    numpyro.sample("y", dist.Normal(m + t * g, ERRORS), obs=EFFECTS)


@pair(schools_twin)
def schools():
    m, t, g = pm.Normal("m", 0, 5), pm.HalfCauchy("t", 5), pm.Normal("g", 0, 1, shape=8)
    pm.Normal("y", m + t * g, ERRORS, observed=EFFECTS)


def gamma_twin():
    k = numpyro.sample("k", dist.Exponential(0.5))
    numpyro.sample("y", dist.Gamma(k, k / jnp.exp(normal("a") + X @ normal("b", 1.0, 2))), obs=POSITIVE)


@pair(gamma_twin)
def gamma():
    k = pm.Exponential("k", 0.5)
    mean = pm.math.exp(pm.Normal("a", 0, 1) + X @ pm.Normal("b", 0, 1, shape=2))
    pm.Gamma("y", alpha=k, beta=k / mean, observed=POSITIVE)


def survival_twin():
    shape, scale = numpyro.sample("k", dist.Exponential(0.5)), jnp.exp(normal("a") + X @ normal("b", 1.0, 2))
    weibull = dist.Weibull(scale, shape)
    numpyro.factor("seen", jnp.sum(jnp.where(ENDED, weibull.log_prob(POSITIVE), -((POSITIVE / scale) ** shape))))


@pair(survival_twin)
def survival():
    k = pm.Exponential("k", 0.5)
    scale = pm.math.exp(pm.Normal("a", 0, 1) + X @ pm.Normal("b", 0, 1, shape=2))
    pm.Weibull("y", alpha=k, beta=scale[ENDED], observed=POSITIVE[ENDED])
    pm.Potential("censored", pt.sum(-((POSITIVE[~ENDED] / scale[~ENDED]) ** k)))


def rates_twin():
    p = numpyro.sample("p", dist.Beta(2.0, 3.0).expand([5]).to_event(1))
    numpyro.sample("y", dist.Binomial(8, p), obs=np.bincount(GROUP, BINARY).astype(int))


@pair(rates_twin)
def rates():
    pm.Binomial("y", 8, pm.Beta("p", 2.0, 3.0, shape=5), observed=np.bincount(GROUP, BINARY).astype(int))


def shares_twin():
    numpyro.sample("y", dist.Categorical(numpyro.sample("p", dist.Dirichlet(jnp.ones(3)))), obs=KIND)


@pair(shares_twin)
def shares():
    pm.Categorical("y", p=pm.Dirichlet("p", np.ones(3)), observed=KIND)


def mixture_twin():
    m = numpyro.sample("m", dist.TransformedDistribution(
        dist.Normal(0, 5).expand([2]).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    s, w = numpyro.sample("s", dist.HalfNormal(1).expand([2]).to_event(1)), numpyro.sample("w", dist.Beta(2.0, 2.0))
    parts = dist.Normal(m, s)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.stack([w, 1 - w])), parts), obs=LUMPS)


@pair(mixture_twin)
def mixture():
    first, s = pm.Normal("first", 0, 5), pm.HalfNormal("s", 1, shape=2)
    step, w = pm.Normal("step", 0, 5), pm.Beta("w", 2.0, 2.0)
    m = pm.Deterministic("m", pt.stack([first, first + pt.exp(step)]))
    pm.NormalMixture("y", w=pt.stack([w, 1 - w]), mu=m, sigma=s, observed=LUMPS)


def walk_twin():
    t, s = numpyro.sample("t", dist.HalfNormal(1)), numpyro.sample("s", dist.HalfNormal(1))
    z = numpyro.sample("z", dist.GaussianRandomWalk(1.0, 15))
    numpyro.sample("y", dist.Normal(t * z, s), obs=WALK)


@pair(walk_twin)
def walk():
    t, s = pm.HalfNormal("t", 1), pm.HalfNormal("s", 1)
    z = pm.GaussianRandomWalk("z", sigma=1.0, init_dist=pm.Normal.dist(0, 1), steps=14)
    pm.Normal("y", t * z, s, observed=WALK)


def autoregression_twin():
    a, b, s = normal("a"), normal("b", 0.5), numpyro.sample("s", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(a + b * WALK[:-1], s), obs=WALK[1:])


@pair(autoregression_twin)
def autoregression():
    a, b, s = pm.Normal("a", 0, 1), pm.Normal("b", 0, 0.5), pm.HalfNormal("s", 1)
    pm.Normal("y", a + b * WALK[:-1], s, observed=WALK[1:])


def covariance_twin():
    m, s = normal("m", 2.0, 2), numpyro.sample("s", dist.HalfNormal(2).expand([2]).to_event(1))
    r = numpyro.sample("r", dist.Uniform(-1, 1))
    root = jnp.array([[1.0, 0.0], [0.0, 0.0]]) + jnp.array([[0.0, 0.0], [1.0, 0.0]]) * r
    root = root.at[1, 1].set(jnp.sqrt(1 - r**2))
    numpyro.sample("y", dist.MultivariateNormal(m, scale_tril=s[:, None] * root), obs=PAIRS)


@pair(covariance_twin)
def covariance():
    m, s, r = pm.Normal("m", 0, 2, shape=2), pm.HalfNormal("s", 2, shape=2), pm.Uniform("r", -1, 1)
    root = pt.stack([pt.stack([s[0], 0.0]), pt.stack([s[1] * r, s[1] * pt.sqrt(1 - r**2)])])
    pm.MvNormal("y", m, chol=root, observed=PAIRS)


def ordinal_twin():
    cuts = numpyro.sample("c", dist.TransformedDistribution(
        dist.Normal(0, 2).expand([2]).to_event(1), dist.transforms.OrderedTransform()
    ))  # fmt: skip
    numpyro.sample("y", dist.OrderedLogistic(X @ normal("b", 1.0, 2), cuts), obs=LEVEL)


@pair(ordinal_twin)
def ordinal():
    first, step = pm.Normal("first", 0, 2), pm.Normal("step", 0, 2)
    cuts = pm.Deterministic("c", pt.stack([first, first + pt.exp(step)]))
    pm.OrderedLogistic("y", eta=X @ pm.Normal("b", 0, 1, shape=2), cutpoints=cuts, observed=LEVEL)


def horseshoe_twin():
    t, g = numpyro.sample("t", dist.HalfCauchy(1)), normal("g", 1.0, 2)
    local = numpyro.sample("l", dist.HalfCauchy(1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ (g * local * t), 1.0), obs=REAL - REAL.mean())


@pair(horseshoe_twin)
def horseshoe():
    t, g, local = pm.HalfCauchy("t", 1), pm.Normal("g", 0, 1, shape=2), pm.HalfCauchy("l", 1, shape=2)
    pm.Normal("y", X @ (g * local * t), 1.0, observed=REAL - REAL.mean())


def lasso_twin():
    b = numpyro.sample("b", dist.Laplace(0, 1).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=REAL)


@pair(lasso_twin)
def lasso():
    pm.Normal("y", X @ pm.Laplace("b", 0, 1, shape=2), 1.0, observed=REAL)


def zeros_twin():
    w, rate = numpyro.sample("w", dist.Beta(2.0, 2.0)), numpyro.sample("rate", dist.Exponential(0.5))
    numpyro.sample("y", dist.ZeroInflatedPoisson(1 - w, rate), obs=COUNT)


@pair(zeros_twin)
def zeros():
    pm.ZeroInflatedPoisson("y", psi=pm.Beta("w", 2.0, 2.0), mu=pm.Exponential("rate", 0.5), observed=COUNT)


def softmax_twin():
    b = numpyro.sample("b", dist.Normal(0, 1).expand([2, 3]).to_event(2))
    numpyro.sample("y", dist.Categorical(logits=X @ b), obs=KIND)


@pair(softmax_twin)
def softmax():
    pm.Categorical("y", logit_p=X @ pm.Normal("b", 0, 1, shape=(2, 3)), observed=KIND)


def volatility_twin():
    h, t = normal("h", 1.0, 15), numpyro.sample("t", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(0.0, jnp.exp(-1 + t * jnp.cumsum(h))), obs=np.diff(WALK, prepend=0.0))


@pair(volatility_twin)
def volatility():
    h, t = pm.Normal("h", 0, 1, shape=15), pm.HalfNormal("t", 1)
    pm.Normal("y", 0.0, pm.math.exp(-1 + t * pt.cumsum(h)), observed=np.diff(WALK, prepend=0.0))


def two_outcomes_twin():
    a, b = normal("a"), normal("b")
    numpyro.sample("y", dist.Normal(a + b * X[:, 0], 1.0), obs=REAL)
    numpyro.sample("n", dist.Poisson(jnp.exp(0.3 * a + b * X[:, 1])), obs=COUNT)


@pair(two_outcomes_twin)
def two_outcomes():
    a, b = pm.Normal("a", 0, 1), pm.Normal("b", 0, 1)
    pm.Normal("y", a + b * X[:, 0], 1.0, observed=REAL)
    pm.Poisson("n", pm.math.exp(0.3 * a + b * X[:, 1]), observed=COUNT)


def built(name):
    """A model of the table in PyMC."""
    with pm.Model() as model:
        MODELS[name][0]()
    return model
