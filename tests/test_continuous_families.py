# SPDX-License-Identifier: Apache-2.0
"""Gamma, beta and low-rank Gaussian families: exact expectations, by quadrature in the noise and in the latent."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import quell
from exact import expectation, minibatches
from quell.estimators import GeneralizedReparameterization
from quell.evaluation import Evaluation
from quell.families import Beta, BetaParams, Gamma, GammaParams, LowRank, LowRankParams
from tolerances import EXPECTATION

FEATURES = np.array([[1.0, 0.3], [0.4, 1.1], [0.7, 0.9]])
COUNTS = np.array([2, 0, 3])
CHANCES = np.array([0.9, 0.3, 0.6])
SUCCESSES = np.array([1, 0, 1])

TERMS = {
    "data": quell.Data(),
    "prior": quell.Prior(),
    "variational": quell.Variational(),
    "score": quell.Score(),
    "taylor of data": quell.TaylorInLatent(),
}
ESTIMATORS = (
    quell.ScoreFunction(),
    quell.Reparameterization(),
    quell.Reparameterization("implicit", full_data=True),
    GeneralizedReparameterization(),
    GeneralizedReparameterization(full_data=True),
    quell.ClosedForm(),
)


class Rule(NamedTuple):
    """A quadrature: one node a row, and their weights."""

    nodes: np.ndarray
    weights: np.ndarray


class Case(NamedTuple):
    """A problem with parameters, a rule for the noise, and a rule for integrals over the latent."""

    problem: quell.Problem
    params: tuple
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
    cov = np.diag(np.exp(2.0 * params.log_scale)) + np.asarray(params.factor @ params.factor.T)
    nodes, mass = product_rule(*normal(20), 2)
    nodes = np.asarray(params.loc) + nodes @ np.linalg.cholesky(cov).T
    return Rule(nodes, mass / scipy.stats.multivariate_normal(params.loc, cov).pdf(nodes))


def rates(z, batch):
    """Counts whose rates are positive combinations of positive latents."""
    rate = batch["x"] @ z
    return batch["y"] * jnp.log(rate) - rate


def chances(z, batch):
    """Successes where a chance and the latent must both come true."""
    chance = batch["x"] * z[0]
    return batch["y"] * jnp.log(chance) + (1 - batch["y"]) * jnp.log1p(-chance)


@functools.cache
def cases() -> dict[str, Case]:
    positive = quell.Model(rates, quell.NormalPrior(1.0, 0.8), {"x": FEATURES, "y": COUNTS}, 2)
    between = quell.Model(chances, lambda z: 0.5 * jnp.log(z[0]) - z[0], {"x": CHANCES, "y": SUCCESSES}, 1)
    line = quell.poisson_regression(0.4 * FEATURES, COUNTS, prior=quell.NormalPrior(0.1, 0.7))
    gamma = GammaParams(jnp.log(jnp.array([0.7, 2.3])), jnp.log(jnp.array([0.9, 1.6])))
    beta = BetaParams(jnp.log(jnp.array([0.8])), jnp.log(jnp.array([2.4])))
    low_rank = LowRankParams(jnp.array([0.3, -0.2]), jnp.log(jnp.array([0.6, 0.5])), jnp.array([[0.4], [-0.5]]))
    uniform = product_rule(*unit_interval(36), 2)
    return {
        "gamma": Case(quell.Problem(positive, Gamma(2)), gamma, uniform, product_rule(*half_line(50), 2)),
        "beta": Case(quell.Problem(between, Beta(1)), beta, uniform, product_rule(*unit_interval(60), 1)),
        "low-rank": Case(quell.Problem(line, LowRank(2, 1)), low_rank, product_rule(*normal(14), 3), plane(low_rank)),
    }


NAMES = ("gamma", "beta", "low-rank")


class At(Evaluation):
    """An evaluation whose latents are given."""

    def __init__(self, problem, params, latents):
        super().__init__(problem, params, quell.Draw(latents, None))
        self._latents = {"here": latents}


def pairs(problem):
    """Every term with every estimator that does not refuse it."""
    for name, term in TERMS.items():
        made = term.apply(quell.Data(), term.init(problem)) if isinstance(term, quell.TaylorInLatent) else term
        for estimator in ESTIMATORS:
            if estimator.refuses(problem, made) is None:
                yield f"{estimator.name} of {name}", name, made, estimator


@functools.cache
def expectations(name):
    """The exact expectation of each estimator of each term, and the gradient that it estimates."""
    problem, params, noise, latent = cases()[name]
    batches = minibatches(problem.model.num_data, 2, replace=False)
    draw = quell.Draw(
        jnp.asarray(np.repeat(noise.nodes, len(batches), axis=0)), jnp.asarray(np.tile(batches, (len(noise.nodes), 1)))
    )
    mass = jnp.asarray(np.repeat(noise.weights, len(batches)) / len(batches))
    points, weights = jnp.asarray(latent.nodes), jnp.asarray(latent.weights)

    def truth(term, held):
        values = term.values(At(problem, held, points), "here", full_data=True)
        densities = lambda w: jnp.exp(jax.vmap(lambda z: problem.family.log_prob(w, z))(points))
        return jax.grad(lambda w: jnp.sum(weights * values * densities(w)))(held)

    def everything(at):
        evaluation = Evaluation(problem, at, draw)
        found = {
            what: expectation(estimator.estimate(evaluation, term), evaluation, mass)
            for what, _, term, estimator in pairs(problem)
        }
        truths = {which: truth(term, at) for _, which, term, _ in pairs(problem)}
        return found, {what: truths[which] for what, which, _, _ in pairs(problem)}

    return everything(params)


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


@pytest.mark.parametrize(("name", "num"), [("gamma", 29), ("beta", 28), ("low-rank", 14)])
def test_estimators_are_unbiased(name, num):
    found, truths = expectations(name)
    assert len(found) == num
    for what, mean in found.items():
        all_close(mean, truths[what], EXPECTATION)


@pytest.mark.parametrize("name", NAMES)
def test_a_planted_error_is_caught(name):
    found, truths = expectations(name)
    for what, mean in found.items():
        if not what.endswith("score"):
            with pytest.raises(AssertionError):
                all_close(jax.tree.map(lambda x: x * (1.0 + 1e-4), mean), truths[what], EXPECTATION)
