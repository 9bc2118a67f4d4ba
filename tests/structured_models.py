# SPDX-License-Identifier: Apache-2.0
"""Small models as users of NumPyro write them, by name."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import plate, sample
from numpyro.infer.reparam import LocScaleReparam

ROWS, COVARIATES, GROUPS = 12, 2, 3
_RNG = np.random.default_rng(0)
X = jnp.asarray(_RNG.normal(size=(ROWS, COVARIATES)))
REAL, POSITIVE = jnp.asarray(_RNG.normal(size=ROWS)), jnp.asarray(_RNG.gamma(2.0, 1.0, ROWS))
BINARY, COUNT = jnp.asarray(_RNG.integers(0, 2, ROWS)), jnp.asarray(_RNG.poisson(2, ROWS))
THREE, FOUR = jnp.asarray(_RNG.integers(0, 3, ROWS)), jnp.asarray(_RNG.integers(0, 4, ROWS))
GROUP, OTHER = jnp.arange(ROWS) % GROUPS, (jnp.arange(ROWS) // GROUPS) % GROUPS

MODELS = {}


def model(function):
    MODELS[function.__name__] = function
    return function


def slopes(scale=1.0):
    return sample("slopes", dist.Normal(0.0, scale).expand([COVARIATES]))


def observe(distribution, values):
    with plate("rows", values.shape[0]):
        sample("obs", distribution, obs=values)


@model
def logistic():
    intercept = sample("intercept", dist.Normal(0, 1))
    observe(dist.Bernoulli(logits=intercept + X @ slopes()), BINARY)


@model
def probit():
    observe(dist.Bernoulli(probs=jax.scipy.special.ndtr(X @ slopes())), BINARY)


@model
def poisson():
    observe(dist.Poisson(jnp.exp(X @ slopes())), COUNT)


@model
def negative_binomial():
    observe(dist.NegativeBinomial2(jnp.exp(X @ slopes()), sample("c", dist.Gamma(2, 0.1))), COUNT)


@model
def zero_inflated():
    observe(dist.ZeroInflatedPoisson(sample("gate", dist.Beta(1, 1)), jnp.exp(X @ slopes())), COUNT)


@model
def gaussian():
    observe(dist.Normal(X @ slopes(), sample("sigma", dist.HalfCauchy(1))), REAL)


@model
def two_scales():
    """Mean and scale both with covariates."""
    log_scale = X @ sample("other", dist.Normal(0, 1).expand([COVARIATES]))
    observe(dist.Normal(X @ slopes(), jnp.exp(log_scale)), REAL)


@model
def student():
    sigma, freedom = sample("sigma", dist.HalfNormal(1)), sample("freedom", dist.Gamma(2, 0.1))
    observe(dist.StudentT(freedom, X @ slopes(), sigma), REAL)


@model
def laplace():
    observe(dist.Laplace(X @ slopes(), sample("sigma", dist.HalfNormal(1))), REAL)


@model
def lasso():
    coefficients = sample("slopes", dist.Laplace(0, 1).expand([COVARIATES]))
    observe(dist.Normal(X @ coefficients, 1.0), REAL)


@model
def log_normal():
    observe(dist.LogNormal(X @ slopes(), sample("sigma", dist.HalfNormal(1))), POSITIVE)


@model
def gamma():
    shape = sample("shape", dist.Gamma(1, 1))
    observe(dist.Gamma(shape, shape / jnp.exp(X @ slopes())), POSITIVE)


@model
def weibull():
    """Survival with censoring."""
    scale, shape = jnp.exp(X @ slopes()), sample("shape", dist.Gamma(1, 1))
    density, survival = dist.Weibull(scale, shape).log_prob(POSITIVE), -((POSITIVE / scale) ** shape)
    with plate("rows", ROWS):
        numpyro.factor("obs", jnp.where(BINARY == 1, survival, density))


@model
def gompertz():
    observe(dist.Gompertz(sample("e", dist.Exponential(1.0)), jnp.exp(sample("b", dist.Normal(0, 1)))), POSITIVE)


@model
def ordinal():
    ordered = dist.TransformedDistribution(dist.Normal(0, 1).expand([2]), dist.transforms.OrderedTransform())
    observe(dist.OrderedLogistic(X @ slopes(), sample("cuts", ordered)), THREE)


@model
def ordinal_of_four():
    ordered = dist.TransformedDistribution(dist.Normal(0, 1).expand([3]), dist.transforms.OrderedTransform())
    observe(dist.OrderedLogistic(X @ slopes(), sample("cuts", ordered)), FOUR)


@model
def multinomial():
    observe(dist.Categorical(logits=X @ sample("slopes", dist.Normal(0, 1).expand([COVARIATES, 3]))), THREE)


@model
def binomial():
    with plate("groups", GROUPS):
        share = sample("share", dist.Beta(2, 2))
    observe(dist.Binomial(10, share[GROUP]), COUNT)


@model
def beta_binomial():
    size, mean = sample("size", dist.Gamma(2, 0.1)), sample("mean", dist.Beta(2, 2))
    observe(dist.BetaBinomial(mean * size, (1 - mean) * size, total_count=10), COUNT)


@model
def simplex():
    observe(dist.Categorical(sample("shares", dist.Dirichlet(jnp.ones(3)))), THREE)


@model
def mixture():
    means, share = sample("means", dist.Normal(0, 3).expand([2])), sample("share", dist.Beta(2, 2))
    parts = dist.Categorical(jnp.stack([share, 1 - share]))
    observe(dist.MixtureSameFamily(parts, dist.Normal(means, 1.0)), REAL)


@model
def item_response():
    with plate("people", GROUPS):
        ability = sample("ability", dist.Normal(0, 1))
    with plate("items", GROUPS):
        slope, difficulty = sample("slope", dist.LogNormal(0, 0.5)), sample("difficulty", dist.Normal(0, 1))
    observe(dist.Bernoulli(logits=slope[GROUP] * (ability[OTHER] - difficulty[GROUP])), BINARY)


@model
def varying_intercepts_and_slopes():
    mean, scale = sample("mean", dist.Normal(0, 1).expand([2])), sample("scale", dist.HalfNormal(1).expand([2]))
    with plate("groups", GROUPS):
        own = sample("own", dist.Normal(mean, scale).to_event(1))
    observe(dist.Normal(own[GROUP, 0] + own[GROUP, 1] * X[:, 0], sample("sigma", dist.Exponential(1))), REAL)


@model
def crossed_groups():
    scales = [sample(name, dist.HalfNormal(1)) for name in ("one", "two", "sigma")]
    with plate("groups", GROUPS):
        one = sample("a", dist.Normal(0, scales[0]))
    with plate("others", GROUPS):
        two = sample("b", dist.Normal(0, scales[1]))
    observe(dist.Normal(one[GROUP] + two[OTHER], scales[2]), REAL)


@model
def centred_schools():
    mean, scale = sample("mean", dist.Normal(0, 5)), sample("scale", dist.HalfCauchy(5))
    with plate("schools", ROWS):
        sample("obs", dist.Normal(sample("effect", dist.Normal(mean, scale)), 10.0), obs=REAL)


@model
def non_centred_schools():
    mean, scale = sample("mean", dist.Normal(0, 5)), sample("scale", dist.HalfCauchy(5))
    with plate("schools", GROUPS):
        sample("obs", dist.Normal(mean + scale * sample("unit", dist.Normal(0, 1)), 10.0), obs=REAL[:GROUPS])


@model
def reparameterized_schools():
    mean, scale = sample("mean", dist.Normal(0, 5)), sample("scale", dist.HalfCauchy(5))
    with plate("schools", GROUPS), numpyro.handlers.reparam(config={"effect": LocScaleReparam(0)}):
        effect = sample("effect", dist.Normal(mean, scale))
    observe(dist.Normal(effect[GROUP], 10.0), REAL)


@model
def horseshoe():
    shared, own = sample("shared", dist.HalfCauchy(1)), sample("own", dist.HalfCauchy(1).expand([COVARIATES]))
    coefficients = sample("slopes", dist.Normal(0, shared * own))
    observe(dist.Normal(X @ coefficients, sample("sigma", dist.HalfNormal(1))), REAL)


@model
def non_centred_horseshoe():
    shared, own = sample("shared", dist.HalfCauchy(1)), sample("own", dist.HalfCauchy(1).expand([COVARIATES]))
    unit = sample("unit", dist.Normal(0, 1).expand([COVARIATES]))
    observe(dist.Normal(X @ (unit * own * shared), sample("sigma", dist.HalfNormal(1))), REAL)


@model
def random_walk():
    states = sample("states", dist.GaussianRandomWalk(sample("sigma", dist.HalfNormal(1)), ROWS))
    sample("obs", dist.Normal(states, 0.5).to_event(1), obs=REAL)


@model
def stochastic_volatility():
    sigma, freedom = sample("sigma", dist.Exponential(50.0)), sample("freedom", dist.Exponential(0.1))
    states = sample("states", dist.GaussianRandomWalk(sigma, ROWS))
    sample("obs", dist.StudentT(freedom, 0.0, jnp.exp(states)), obs=REAL)


@model
def bradley_terry():
    scale = sample("scale", dist.HalfNormal(1))
    with plate("players", GROUPS + 1):
        skill = sample("skill", dist.Normal(0, scale))
    observe(dist.Bernoulli(logits=skill[GROUP] - skill[GROUP + 1]), jnp.ones(ROWS))


@model
def autoregression():
    slope, sigma = sample("slope", dist.Normal(0, 1)), sample("sigma", dist.HalfNormal(1))
    observe(dist.Normal(slope * REAL[:-1], sigma), REAL[1:])


@model
def truncated_prior():
    slope, sigma = sample("slope", dist.TruncatedNormal(0, 1, low=0.0)), sample("sigma", dist.HalfNormal(1))
    observe(dist.Normal(slope * X[:, 0], sigma), REAL)


@model
def variance_with_a_prior():
    variance = sample("variance", dist.InverseGamma(2, 2))
    coefficients = sample("slopes", dist.Cauchy(0, 1).expand([COVARIATES]))
    observe(dist.Normal(X @ coefficients, jnp.sqrt(variance)), REAL)


@model
def circular():
    observe(dist.VonMises(sample("mean", dist.Normal(0, 1)), sample("concentration", dist.HalfNormal(1))), REAL)


@model
def uniform_prior():
    observe(dist.Normal(sample("mean", dist.Uniform(-3, 3)), sample("sigma", dist.HalfNormal(1))), REAL)


@model
def skew():
    """A density with a normal distribution function in it."""
    with plate("rows", ROWS):
        location, slant = sample("location", dist.Normal(0, 1)), sample("slant", dist.Normal(0, 1))
        normal = dist.Normal(location, 1.0).log_prob(REAL)
        numpyro.factor("obs", normal + jax.scipy.special.log_ndtr(slant * (REAL - location)))


@model
def quadratic_trend():
    level, bend = sample("level", dist.Normal(0, 1)), sample("bend", dist.Normal(0, 1))
    observe(dist.Normal(level + bend * X[:, 0] ** 2, 1.0), REAL)


@model
def logit_normal_shares():
    with plate("groups", GROUPS):
        share = jax.nn.sigmoid(sample("logit", dist.Normal(sample("mean", dist.Normal(0, 1)), 1.0)))
    observe(dist.Bernoulli(probs=share[GROUP]), BINARY)


@model
def correlated():
    scale, root = sample("scale", dist.HalfNormal(1).expand([2])), sample("root", dist.LKJCholesky(2, 2.0))
    with plate("rows", ROWS):
        sample("obs", dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale[:, None] * root), obs=X)


@model
def correlated_slopes():
    """Intercepts and slopes that vary together: an addend of the prior sees five linear functions."""
    scale, root = sample("scale", dist.HalfNormal(1).expand([2])), sample("root", dist.LKJCholesky(2, 2.0))
    with plate("groups", GROUPS):
        effects = sample("effects", dist.MultivariateNormal(jnp.zeros(2), scale_tril=scale[:, None] * root))
    observe(dist.Bernoulli(logits=effects[GROUP, 0] + effects[GROUP, 1] * X[:, 0]), BINARY)


@model
def known_process():
    """A Gaussian process whose kernel is known, with counts."""
    kernel = jnp.exp(-((X[:, :1] - X[:, 0]) ** 2)) + 0.1 * jnp.eye(ROWS)
    latent = sample("latent", dist.MultivariateNormal(jnp.zeros(ROWS), scale_tril=jnp.linalg.cholesky(kernel)))
    observe(dist.Poisson(jnp.exp(latent)), COUNT)


OPAQUE = {}


def opaque(function):
    OPAQUE[function.__name__] = function
    return function


@opaque
def network():
    """Every row sees all weights."""
    first = sample("first", dist.Normal(0, 1).expand([COVARIATES, 4]))
    second = sample("second", dist.Normal(0, 1).expand([4]))
    observe(dist.Normal(jnp.tanh(X @ first) @ second, 1.0), REAL)


@opaque
def process():
    """A Gaussian process with an unknown length."""
    length = sample("length", dist.LogNormal(0, 1))
    distance = (X[:, :1] - X[:, 0]) ** 2
    covariance = jnp.exp(-distance / length**2) + 0.1 * jnp.eye(ROWS)
    sample("obs", dist.MultivariateNormal(jnp.zeros(ROWS), covariance), obs=REAL)


@opaque
def recursion():
    """A conditional variance that depends on all before."""
    omega, alpha, beta = (sample(name, dist.HalfNormal(1)) for name in ("omega", "alpha", "beta"))

    def step(variance, value):
        following = omega + alpha * value**2 + beta * variance
        return following, following

    _, variances = jax.lax.scan(step, jnp.asarray(1.0), REAL)
    observe(dist.Normal(0.0, jnp.sqrt(variances)), REAL)


@opaque
def largest():
    """An index that depends on the latent."""
    values = sample("values", dist.Normal(0, 1).expand([GROUPS]))
    observe(dist.Normal(values[jnp.argmax(values)], 1.0), REAL)
