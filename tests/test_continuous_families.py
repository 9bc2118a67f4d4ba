# SPDX-License-Identifier: Apache-2.0
"""Gamma, beta and low-rank Gaussian families: exact expectations, by quadrature in the noise and in the latent.

The integrals of the laws take densities only, those of the estimators noise only, so that neither can hide an error of
the other. All of a family's estimators are compiled as one program.
"""

import functools
import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

import quell
from exact import minibatches
from quell.estimators import GeneralizedReparameterization
from quell.evaluation import Evaluation
from quell.families import Beta, BetaParams, Gamma, GammaParams, LowRank, LowRankParams
from quell.families.quantile import log_gamma_quantile
from tolerances import DIFFERENCES, EXACT, EXPECTATION, ROUNDING, SINGLE

NAMES = ("gamma", "beta", "low-rank")
FEATURES = [[1.0, 0.3], [0.4, 1.1], [0.7, 0.9]]
COUNTS = [2, 0, 3]
CHANCES = [0.9, 0.3, 0.6]
SUCCESSES = [1, 0, 1]

TERMS = {
    "data": quell.Data(),
    "prior": quell.Prior(),
    "variational": quell.Variational(),
    "score": quell.Score(),
}
ESTIMATORS = (
    quell.ScoreFunction(),
    quell.Reparameterization(),
    GeneralizedReparameterization(),
    quell.ClosedForm(),
)
ON_ALL_DATA = GeneralizedReparameterization(full_data=True)


class Rule(NamedTuple):
    """A quadrature: one node a row, and their weights."""

    nodes: Any
    weights: Any


class Case(NamedTuple):
    """A problem with parameters, a rule for the noise, and a rule for integrals over the latent."""

    problem: quell.Problem
    params: Any
    noise: Rule
    latent: Rule


def product_rule(nodes: np.ndarray, weights: np.ndarray, dim: int) -> Rule:
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    return Rule(grid, np.prod(np.array(list(itertools.product(weights, repeat=dim))), axis=1))


def unit_interval(num: int) -> tuple[np.ndarray, np.ndarray]:
    """The tanh-sinh rule on (0, 1): logarithms at the ends do it no harm."""
    s = np.linspace(-3.1, 3.1, num)
    u, v = scipy.special.expit(np.pi * np.sinh(s)), scipy.special.expit(-np.pi * np.sinh(s))
    return u, (s[1] - s[0]) * np.pi * np.cosh(s) * u * v


def half_line(num: int) -> tuple[np.ndarray, np.ndarray]:
    """The double exponential rule on (0, inf), for what has an exponential tail."""
    s = np.linspace(-4.0, 4.0, num)
    z = np.exp(s - np.exp(-s))
    return z, (s[1] - s[0]) * z * (1.0 + np.exp(-s))


def normal(num: int) -> tuple[np.ndarray, np.ndarray]:
    """The Gauss-Hermite rule for a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num)
    return nodes, weights / weights.sum()


def plane(params: LowRankParams) -> Rule:
    """A rule on the plane that suits a Gaussian, made without our code."""
    covariance = np.diag(np.exp(2.0 * params.log_scale)) + np.asarray(params.factor @ params.factor.T)
    nodes, mass = product_rule(*normal(20), 2)
    nodes = np.asarray(params.loc) + nodes @ np.linalg.cholesky(covariance).T
    return Rule(nodes, mass / scipy.stats.multivariate_normal(params.loc, covariance).pdf(nodes))


def rates(z, batch):
    """Counts whose rates are positive combinations of positive latents."""
    rate = batch["x"] @ z
    return batch["y"] * jnp.log(rate) - rate


def chances(z, batch):
    """Successes where a chance and the latent must both come true."""
    chance = batch["x"] * z[0]
    return batch["y"] * jnp.log(chance) + (1 - batch["y"]) * jnp.log1p(-chance)


@functools.cache
def case(name: str, dtype=jnp.float64) -> Case:
    """What is tested of a family, away from every special point; one shape is below one."""
    array = functools.partial(jnp.array, dtype=dtype)
    if name == "gamma":
        model = quell.Model(
            rates, quell.NormalPrior(1.0, 0.8), {"x": array(FEATURES), "y": jnp.array(COUNTS)}, array([1.0, 1.0])
        )
        params = GammaParams(jnp.log(array([0.7, 2.3])), jnp.log(array([0.9, 1.6])))
        noise, latent = product_rule(*unit_interval(36), 2), product_rule(*half_line(50), 2)
        return Case(quell.Problem(model, Gamma(2)), params, noise, latent)
    if name == "beta":
        data = {"x": array(CHANCES), "y": jnp.array(SUCCESSES)}
        model = quell.Model(chances, lambda z: 0.5 * jnp.log(z[0]) - z[0], data, array([0.5]))
        params = BetaParams(jnp.log(array([0.8])), jnp.log(array([2.4])))
        noise, latent = product_rule(*unit_interval(36), 2), product_rule(*unit_interval(60), 1)
        return Case(quell.Problem(model, Beta(1)), params, noise, latent)
    model = quell.poisson_regression(0.4 * array(FEATURES), COUNTS, prior=quell.NormalPrior(0.1, 0.7))
    params = LowRankParams(array([0.3, -0.2]), jnp.log(array([0.6, 0.5])), array([[0.4], [-0.5]]))
    return Case(quell.Problem(model, LowRank(2, rank=1)), params, product_rule(*normal(14), 3), plane(params))


class At(Evaluation):
    """An evaluation whose latents are given."""

    def __init__(self, problem, params, latents):
        super().__init__(problem, params, quell.Draw(latents, None))
        self._latents = {"here": latents}


def quadratic(problem):
    """A quadratic for each minibatch, so that the data term too has a closed form."""
    taylor = quell.TaylorInLatent()
    return taylor.apply(quell.Data(), taylor.init(problem))


def samples(evaluation, terms, estimators=ESTIMATORS):
    """One gradient a replicate, of every term with every estimator that does not refuse it."""
    return {
        (name, estimator.name): evaluation.algebra.dense(estimator.estimate(evaluation, term))
        for (name, term), estimator in itertools.product(terms.items(), estimators)
        if estimator.refuses(evaluation.problem, term) is None
    }


def exact_draw(problem, rule):
    """All nodes of the noise times all minibatches of two data, and the probability of each."""
    batches = minibatches(problem.model.num_data, 2, replace=False)
    noise = jnp.asarray(np.repeat(rule.nodes, len(batches), axis=0))
    index = jnp.asarray(np.tile(batches, (len(rule.nodes), 1)))
    return quell.Draw(noise, index), jnp.asarray(np.repeat(rule.weights, len(batches)) / len(batches))


def likely_draw(name, dtype=jnp.float64):
    """Four replicates of the exact draw, of large mass, and where they are in it."""
    draw, mass = exact_draw(case(name).problem, case(name).noise)
    rows = jnp.argsort(mass)[-20::5]
    return quell.Draw(draw.noise[rows].astype(dtype), draw.index[rows]), rows


def true_gradients(problem, terms, params, rule):
    """Gradients of the integrals of density times function, with the functions held at the parameters."""
    held = At(problem, params, rule.nodes)
    values = jnp.stack([term.values(held, "here", full_data=True) for term in terms.values()])

    def integrals(w):
        return values @ (rule.weights * jnp.exp(jax.vmap(lambda z: problem.family.log_prob(w, z))(rule.nodes)))

    grads = jax.jacrev(integrals)(params)
    return {name: jax.tree.map(lambda leaf, k=k: leaf[k], grads) for k, name in enumerate(terms)}


class Found(NamedTuple):
    """What one compiled program says about a family."""

    means: dict
    truths: dict
    likely: dict
    latents: Any
    log_probs: Any
    entropy: Any
    moments: tuple


@functools.cache
def found(name: str) -> Found:
    problem, start, noise, latent = case(name)
    family = problem.family

    @jax.jit
    def everything(params, draw, mass, rows, rule) -> Found:
        evaluation, expanded = Evaluation(problem, params, draw), {"quadratic": quadratic(problem)}
        dense = samples(evaluation, TERMS) | samples(evaluation, expanded, [quell.ScoreFunction(), quell.ClosedForm()])
        dense |= samples(evaluation, {"data": quell.Data()}, [ON_ALL_DATA])
        return Found(
            means=jax.tree.map(lambda leaf: jnp.tensordot(mass, leaf, axes=1), dense),
            truths=true_gradients(problem, TERMS | expanded, params, rule),
            likely=jax.tree.map(lambda leaf: leaf[rows], dense),
            latents=evaluation.latents(family.sampling),
            log_probs=jax.vmap(lambda z: family.log_prob(params, z))(rule.nodes),
            entropy=family.entropy(params),
            moments=(
                family.mean(params),
                family.variance(params),
                family.covariance_product(params, jnp.eye(family.dim)),
            ),
        )

    draw, mass = exact_draw(problem, noise)
    rule = jax.tree.map(jnp.asarray, latent)
    return jax.tree.map(np.asarray, everything(start, draw, mass, likely_draw(name)[1], rule))


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


@pytest.mark.parametrize(("name", "num"), [("gamma", 18), ("beta", 17), ("low-rank", 14)])
def test_estimators_are_unbiased(name, num):
    """So the difference of any two estimators of a term has mean zero."""
    assert len(found(name).means) == num
    for (term, _), mean in found(name).means.items():
        all_close(mean, found(name).truths[term], EXPECTATION)


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_error_is_caught(name):
    for (term, _), mean in found(name).means.items():
        truth = found(name).truths[term]
        wrong = jax.tree.map(lambda x: 1e-4 + (1.0 + 1e-4) * x, mean)
        with pytest.raises(AssertionError):
            all_close(wrong, truth, EXPECTATION)


@pytest.mark.parametrize("name", NAMES)
def test_density_entropy_and_moments_agree_with_quadrature(name):
    problem, _, noise, latent = case(name)
    mean, variance, covariance = found(name).moments
    mass = latent.weights * np.exp(found(name).log_probs)
    np.testing.assert_allclose(mass.sum(), 1.0, **EXPECTATION)
    np.testing.assert_allclose(-mass @ found(name).log_probs, found(name).entropy, **EXPECTATION)
    for nodes, weights in ((latent.nodes, mass), (found(name).latents, exact_draw(problem, noise)[1])):
        centred = nodes - weights @ nodes
        np.testing.assert_allclose(mean, weights @ nodes, **EXPECTATION)
        np.testing.assert_allclose(variance, weights @ centred**2, **EXPECTATION)
        np.testing.assert_allclose(covariance, centred.T @ (weights[:, None] * centred), **EXPECTATION)


def test_densities_and_entropies_are_those_of_scipy():
    first, second = np.array([0.2, 3.0, 80.0]), np.array([0.5, 2.0, 40.0])
    logs = jnp.log(jnp.array([first, second]))
    wide = LowRank(5, rank=2).init(dtype=jnp.float64)
    wide = wide._replace(factor=1e3 * wide.factor)
    covariance = np.diag(np.exp(2.0 * wide.log_scale)) + np.asarray(wide.factor @ wide.factor.T)
    for family, params, oracle in (
        (Gamma(3), GammaParams(*logs), scipy.stats.gamma(first, scale=1.0 / second)),
        (Beta(3), BetaParams(*logs), scipy.stats.beta(first, second)),
        (LowRank(5, rank=2), wide, scipy.stats.multivariate_normal(np.zeros(5), covariance)),
    ):
        z = np.linspace(0.2, 0.9, family.dim)
        log_prob, entropy = jax.jit(lambda w, z, f=family: (f.log_prob(w, z), f.entropy(w)))(params, jnp.asarray(z))
        np.testing.assert_allclose(log_prob, np.sum(oracle.logpdf(z)), **EXACT)
        np.testing.assert_allclose(entropy, np.sum(oracle.entropy()), **EXACT)


def test_quantile_is_that_of_scipy():
    shape, u = np.meshgrid(
        [0.1, 0.29, 0.31, 0.5, 1.0, 3.0, 10.0, 100.0],
        [1e-12, 1e-6, 1e-3, 0.1, 0.3, 0.49, 0.5, 0.51, 0.7, 0.9, 0.999, 1 - 1e-6, 1 - 1e-12, 1 - 2**-53],
    )
    quantile = jax.jit(log_gamma_quantile)
    for dtype, rows in ((np.float64, 14), (np.float32, 12)):
        a, p = shape[:rows].astype(dtype), u[:rows].astype(dtype)
        truth = np.log(scipy.special.gammaincinv(a.astype(float), p.astype(float)))
        error = np.abs(quantile(jnp.asarray(a), jnp.asarray(p)) - truth) / np.maximum(1.0, np.abs(truth))
        assert error.max() < ROUNDING * np.finfo(dtype).eps


def test_quantile_has_the_slopes_of_its_differences():
    """Also where it is far below the smallest number: at shape 0.02 it starts from 1e-400."""
    shape, u = (jnp.asarray(x.ravel()) for x in np.meshgrid([0.02, 0.4, 2.0, 30.0], [1e-8, 0.2, 0.6, 0.99]))
    steps = 1e-5 * shape, 1e-5 * jnp.minimum(u, 1.0 - u)
    quantile = jax.jit(log_gamma_quantile)
    slopes = jax.jit(jax.grad(lambda *x: jnp.sum(log_gamma_quantile(*x)), (0, 1)))(shape, u)
    in_shape = quantile(shape + steps[0], u) - quantile(shape - steps[0], u)
    in_u = quantile(shape, u + steps[1]) - quantile(shape, u - steps[1])
    np.testing.assert_allclose(slopes[0] * shape, 0.5e5 * in_shape, **DIFFERENCES)
    np.testing.assert_allclose(slopes[1] * steps[1], 0.5 * in_u, **DIFFERENCES)


def test_jit_equals_eager():
    """A gradient of the low-rank family; of the quantile, which is compiled by itself, the value."""
    draw, _ = likely_draw("low-rank")
    at = Evaluation(case("low-rank").problem, case("low-rank").params, draw)
    eager = samples(at, {"data": quell.Data()}, [quell.Reparameterization()])
    all_close(eager, {key: found("low-rank").likely[key] for key in eager}, EXACT)
    draw, rows = likely_draw("gamma")
    latents = Gamma(2).algebra(case("gamma").params, draw.noise).latents("implicit")
    np.testing.assert_allclose(latents, found("gamma").latents[rows], **EXACT)


@pytest.mark.parametrize("name", NAMES)
def test_float32_is_near_float64(name):
    problem, params, _, _ = case(name, jnp.float32)
    run = jax.jit(lambda w, draw: samples(Evaluation(problem, w, draw), {"data": quell.Data()}))
    single = run(params, likely_draw(name, jnp.float32)[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(single)} == {jnp.dtype(jnp.float32)}
    all_close(single, {key: found(name).likely[key] for key in single}, SINGLE)


@pytest.mark.parametrize("name", NAMES)
def test_a_default_fit_runs(name, key):
    problem = case(name).problem
    result = quell.fit(problem.model, problem.family, key=key, variates=(), steps=3, optimizer=optax.sgd(0.01))
    assert result.status is quell.Status.COMPLETED
    assert np.isfinite(result.history.elbo).all()
    assert sum(leaf.size for leaf in jax.tree.leaves(result.params)) == problem.family.num_params


def test_a_low_rank_start_has_columns_that_differ():
    """At a factor of zero, or with equal columns, the exact gradient would never part them."""
    for dim, rank in ((1, 1), (2, 1), (5, 5), (200, 8)):
        params = LowRank(dim, rank=rank, init_scale=0.3).init(dtype=jnp.float64)
        assert np.linalg.matrix_rank(params.factor) == rank
        assert np.abs(params.factor).max() <= 0.03


REFUSED = {
    "gamma without coordinates": (
        lambda: Gamma(0),
        r"`dim` was given as 0\. An integer of at least 1 was needed\. Write",
    ),
    "gamma without shape": (
        lambda: Gamma(2, init_shape=0.0),
        r"`init_shape` was given as 0\.0\. A positive, finite number was needed\. Write .*`init_shape=1\.0`",
    ),
    "gamma of negative rate": (lambda: Gamma(2, init_rate=-1.0), r"`init_rate` was given as -1\.0\. A positive"),
    "beta of half a coordinate": (lambda: Beta(0.5), r"`dim` was given as 0\.5\. An integer of at least 1"),
    "beta of infinite alpha": (
        lambda: Beta(2, init_alpha=np.inf),
        r"`init_alpha` was given as inf\. A positive, finite",
    ),
    "beta of NaN": (lambda: Beta(2, init_beta=np.nan), r"`init_beta` was given as nan\. A positive, finite"),
    "low rank of none": (lambda: LowRank(3, rank=0), r"`rank` was given as 0\. An integer of at least 1 was needed"),
    "low rank that is high": (
        lambda: LowRank(3, rank=4),
        r"^`rank` was given as 4 for 3 coordinates\. At most 3 was needed\. Write `FullRank\(3\)` for all correl",
    ),
    "low rank without scale": (
        lambda: LowRank(3, rank=1, init_scale=0.0),
        r"`init_scale` was given as 0\.0\. A positive",
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_arguments_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_refusals_say_why():
    gamma, low_rank = case("gamma").problem, case("low-rank").problem
    generalized = GeneralizedReparameterization()
    assert generalized.refuses(gamma, quell.Data()) is None
    assert generalized.refuses(low_rank, quell.Data()).startswith("LowRank has no generalized reparameterization (")
    with pytest.raises(ValueError, match=r"was given for .* with LowRank\. It cannot be used: LowRank has no general"):
        quell.Gradient(low_rank, [quell.ControlVariate(quell.Data(), quell.Reparameterization(), generalized)])
    refused = quell.Reparameterization(quell.CHOLESKY).refuses(gamma, quell.Data())
    assert refused == "Gamma has no transport 'cholesky' (it has 'implicit')"
