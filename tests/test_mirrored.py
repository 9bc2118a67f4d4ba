# SPDX-License-Identifier: Apache-2.0
"""The mirrored transport: another square root of the covariance, and antithetic sampling at a weight of one half."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import exact
import quell
from quell.evaluation import Draw, Evaluation
from tolerances import EXACT, EXPECTATION

pytestmark = pytest.mark.slow

MODEL, N = catalogue.MODELS["logistic"], catalogue.NUM_DATA
MIRROR = quell.Reparameterization(quell.MIRRORED)
PAIR = quell.ControlVariate(quell.Data(), quell.Reparameterization(), MIRROR)
TERMS = {"data": quell.Data(), "variational": quell.Variational(), "score": quell.Score()}
ESTIMATORS = {"rp": MIRROR, "rp all": quell.Reparameterization(quell.MIRRORED, full_data=True)}
ESTIMATORS |= {"sf": quell.ScoreFunction(quell.MIRRORED)}


@pytest.mark.parametrize("term", TERMS.values(), ids=TERMS.keys())
@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_it_estimates_what_the_others_estimate(name, term):
    problem = quell.Problem(MODEL, catalogue.FAMILIES[name])
    params = catalogue.some_params(problem.family)
    draw, mass = exact.exact_draw(problem, 2)
    evaluation = Evaluation(problem, params, draw)
    truth = exact.expectation(quell.Reparameterization().estimate(evaluation, term), evaluation, mass)
    for estimator in ESTIMATORS.values():
        found = exact.expectation(estimator.estimate(evaluation, term), evaluation, mass)
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXPECTATION), found, truth)


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_it_is_the_first_transport_at_the_noise_turned_round(name, key):
    problem = quell.Problem(MODEL, catalogue.FAMILIES[name])
    params, first = catalogue.some_params(problem.family), problem.family.transports[0]
    draw = quell.Sampler(4, 2).draw(key, problem.family, N, jnp.float64)
    here = Evaluation(problem, params, draw).algebra
    there = Evaluation(problem, params, Draw(-draw.noise, draw.index)).algebra
    np.testing.assert_allclose(here.latents("mirrored"), there.latents(first), **EXACT)
    np.testing.assert_allclose(here.log_probs("mirrored"), there.log_probs(first), **EXACT)
    np.testing.assert_allclose(here.log_prob_grads("mirrored"), there.log_prob_grads(first), **EXACT)
    weight = jnp.arange(1.0, 5.0)
    mirrored, plain = here.dense(here.score(weight, "mirrored")), there.dense(there.score(weight, first))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), mirrored, plain)


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_factored_equals_dense(name, key):
    problem = quell.Problem(MODEL, catalogue.FAMILIES[name])
    params = catalogue.some_params(problem.family)
    evaluation = Evaluation(problem, params, quell.Sampler(4, 2).draw(key, problem.family, N, jnp.float64))
    particles = evaluation.algebra
    samples = [one.estimate(evaluation, term) for one in ESTIMATORS.values() for term in TERMS.values()]
    samples += [PAIR.sample(evaluation, None), quell.Reparameterization().estimate(evaluation, quell.Data())]
    dense = [jax.tree.leaves(particles.dense(sample)) for sample in samples]
    flat = np.stack([np.concatenate([np.reshape(leaf, (4, -1)) for leaf in one], axis=1) for one in dense])
    np.testing.assert_allclose(particles.gram(samples), np.einsum("knp,lnp->kl", flat, flat) / 4, **EXACT)
    for sample, rows in zip(samples, flat, strict=True):
        carried = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(particles.pullback(sample))])
        np.testing.assert_allclose(carried, rows.mean(axis=0), **EXACT)


def test_half_of_each_is_antithetic_sampling(key):
    """For an even part of the gradient nothing is left to do; the odd part vanishes."""
    problem = quell.Problem(MODEL, catalogue.FAMILIES["full-rank"])
    params = catalogue.some_params(problem.family)
    draw = quell.Sampler(4, 2).draw(key, problem.family, N, jnp.float64)
    both = Draw(jnp.concatenate([draw.noise, -draw.noise]), jnp.concatenate([draw.index, draw.index]))
    here, there = Evaluation(problem, params, draw), Evaluation(problem, params, both)
    path = quell.Reparameterization()
    mixed = path.estimate(here, quell.Data()) + PAIR.sample(here, None) * -0.5
    antithetic = there.algebra.pullback(path.estimate(there, quell.Data()))
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, **EXACT), here.algebra.pullback(mixed), antithetic
    )


def test_a_quadratic_prior_leaves_no_noise_in_the_mean(key):
    """The gradient of a quadratic is odd around the mean, so that the learned weight is one half and the mean exact."""
    problem = quell.Problem(MODEL, quell.FullRank(2, init_scale=1.0))
    pair = quell.ControlVariate(quell.Prior(), quell.Reparameterization(), MIRROR)
    evaluation = Evaluation(
        problem,
        params := catalogue.some_params(problem.family),
        quell.Sampler(4, 2).draw(key, problem.family, N, jnp.float64),
    )
    mixed = quell.Reparameterization().estimate(evaluation, quell.Prior()) + pair.sample(evaluation, None) * -0.5
    np.testing.assert_allclose(evaluation.algebra.dense(mixed).loc, jnp.broadcast_to(-params.loc, (4, 2)), **EXACT)
