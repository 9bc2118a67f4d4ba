# SPDX-License-Identifier: Apache-2.0
"""Estimators by their formulas, what they are worth, and what they refuse; that they are unbiased is in `test_laws`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from catalogue import MODELS, at_nodes, at_random
from exact import all_close, exact_draw, expected_value, gauss_hermite, total_variance
from quell.evaluation import Evaluation
from quell.models.row_sum import ROWS_AT_ONCE
from tolerances import EXACT, EXPECTATION

RP, CF, CF_ALL = quell.Reparameterization(), quell.ClosedForm(), quell.ClosedForm(full_data=True)
RPT, PRICE, MIRROR = quell.TransposedReparameterization(), quell.BonnetPrice(), quell.Reparameterization(quell.MIRRORED)
LR, LR_ALL = quell.LocalReparameterization(), quell.LocalReparameterization(full_data=True)
DATA = quell.Data()


def log_likelihood(model, rows=None):
    """Of some rows, which stand for all data."""
    batch = model.data if rows is None else jax.tree.map(lambda x: x[jnp.asarray(rows)], model.data)
    factor = 1.0 if rows is None else model.num_data / len(rows)
    return lambda z: factor * jnp.sum(model.log_likelihood(z, batch))


# Transposed reparameterization, and Bonnet and Price


def by_hand(name, model, params, family, noise):
    """One replicate of a full-rank Gaussian: location, and triangle in the parameterization of the family."""
    tril, function = family.scale_tril(params), log_likelihood(MODELS[model])
    ahead, behind = params.loc + tril @ noise, params.loc - tril @ noise
    grad = jax.grad(function)(ahead)
    scale = jnp.outer(jnp.linalg.inv(tril).T @ noise, tril.T @ grad)
    if name == "price":
        grad = 0.5 * (grad + jax.grad(function)(behind))
        scale = 0.5 * (jax.hessian(function)(ahead) + jax.hessian(function)(behind)) @ tril
    chain = jnp.where(jnp.eye(2) > 0, tril if family.log_scale else 1.0, 1.0)
    return quell.LocationScale(grad, jnp.tril(scale) * chain)


@pytest.mark.parametrize("name", ["full-rank", "full-rank raw"])
@pytest.mark.parametrize("estimator", [RPT, PRICE], ids=["rpt", "price"])
@pytest.mark.parametrize("model", ["logistic", "function"])
def test_one_replicate_is_the_formula(estimator, model, name):
    noise, (family, params, *_) = jnp.array([[0.7, -1.2]]), catalogue.FAMILIES[name]
    evaluation = Evaluation(catalogue.problem(model, name), params, quell.Draw(noise, None))
    found = evaluation.algebra.pullback(estimator.estimate(evaluation, DATA))
    all_close(found, by_hand(estimator.name, model, params, family, noise[0]), EXACT)


def test_the_transposed_gradient_differs_except_where_the_gradient_is_the_noise():
    evaluation = at_random("logistic", "full-rank")
    for term in (DATA, quell.Prior(), quell.Variational()):
        difference = RP.estimate(evaluation, term) - RPT.estimate(evaluation, term)
        spread = jnp.max(jnp.abs(evaluation.algebra.dense(difference).scale))
        assert (float(spread) > 1e-3) == (term.name != "variational")


QUADRATICS = {
    "as bent in both coordinates": np.array([[1.0, 0.8], [0.8, 1.0]]),
    "any": np.array([[1.0, 0.4], [0.3, 2.0], [-0.5, 1.0]]),
}


@pytest.mark.parametrize("name", QUADRATICS)
def test_on_a_quadratic_the_two_together_have_lower_variance_than_each(name):
    """So has the average than the two on average, and the best weight than each.

    Where the coordinates can be exchanged both are equally noisy, and the average is the best.
    """
    model = quell.gaussian_regression(QUADRATICS[name], np.zeros(len(QUADRATICS[name])))
    family = quell.FullRank(2, log_scale=False, init_scale=0.7)
    draw, mass = exact_draw(gauss_hermite(20).power(2), model.num_data, None)
    evaluation = Evaluation(quell.Problem(model, family), family.init(dtype=jnp.float64), draw)

    @jax.jit
    def variances():
        one, two = RP.estimate(evaluation, DATA), RPT.estimate(evaluation, DATA)

        def variance(sample):
            return jnp.sum(total_variance(sample, evaluation, mass))

        first, second, skew = variance(one), variance(two), variance(one - two)
        weight = 0.5 * (first - second + skew) / skew
        return first, second, variance(one * 0.5 + two * 0.5), variance(one * (1.0 - weight) + two * weight)

    first, second, average, best = variances()
    assert average < 0.97 * 0.5 * (first + second)
    assert best < 0.99 * min(first, second)
    if name == "as bent in both coordinates":
        np.testing.assert_allclose([second, average], [first, best], **EXACT)


@pytest.mark.parametrize("num", [1, 3])
@pytest.mark.release
def test_of_a_quadratic_bonnet_and_price_leave_no_noise(num):
    evaluation = at_random("gaussian", "full-rank", num, None)
    for term in (DATA, quell.Prior(), quell.Variational()):
        found = PRICE.estimate(evaluation, term) - CF.estimate(evaluation, term)
        for leaf in jax.tree.leaves(evaluation.algebra.dense(found)):
            np.testing.assert_allclose(leaf, 0.0, **EXACT)


# The mirrored transport


@pytest.mark.release
def test_half_of_the_mirrored_variate_is_antithetic_sampling():
    here = at_random("logistic", "full-rank", 4, 2)
    both = quell.Draw(jnp.concatenate([here.draw.noise, -here.draw.noise]), jnp.tile(here.draw.index, (2, 1)))
    there = Evaluation(here.problem, here.params, both)
    mixed = RP.estimate(here, DATA) * 0.5 + MIRROR.estimate(here, DATA) * 0.5
    antithetic = there.algebra.pullback(RP.estimate(there, DATA))
    all_close(here.algebra.pullback(mixed), antithetic, EXACT)
    prior = RP.estimate(here, quell.Prior()) * 0.5 + MIRROR.estimate(here, quell.Prior()) * 0.5
    exact = jnp.broadcast_to(-here.params.loc, (4, 2))
    np.testing.assert_allclose(here.algebra.dense(prior).loc, exact, **EXACT)


# Local reparameterization


def with_noise_held(problem, params, z, data):
    """Differentiate the log-likelihood of predictors whose standardised noise, read off the latent, is held."""
    rows = data.features

    def moments(w):
        return rows @ problem.family.mean(w), jnp.sqrt(problem.family.predictor_variance(w, rows))

    mean, scale = moments(params)
    noise = (rows @ z - mean) / scale

    def total(w):
        mean, scale = moments(w)
        values = jax.vmap(problem.model.log_density)(mean + scale * noise, data.targets)
        return jnp.sum(values) * problem.model.num_data / data.targets.shape[0]

    return jax.grad(total)(params)


@pytest.mark.parametrize(("model", "family"), [("poisson", "mean-field"), ("logistic", "full-rank")])
def test_local_reparameterization_is_the_gradient_with_its_noise_held(model, family, key):
    """For minibatches of their own, one for all replicates, and all data."""
    problem, params = catalogue.problem(model, family), catalogue.FAMILIES[family].params
    data, noise = problem.model.data, jax.random.normal(key, (3, 2))

    @jax.jit
    def both(params):
        pairs = []
        for index in (jnp.array([[0, 3], [4, 1], [2, 4]]), jnp.array([0, 2, 3]), None):
            evaluation = Evaluation(problem, params, quell.Draw(noise, index))
            rows = data if index is None else jax.tree.map(lambda x, i=index: x[i], data)
            axis = 0 if index is not None and index.ndim == 2 else None
            truth = jax.vmap(lambda z, batch: with_noise_held(problem, params, z, batch), (0, axis))
            latents = evaluation.latents(problem.family.sampling)
            pairs.append((evaluation.algebra.dense(LR.estimate(evaluation, DATA)), truth(latents, rows)))
        return pairs, evaluation.algebra.dense(LR_ALL.estimate(evaluation, DATA))

    pairs, on_all_data = both(params)
    for found, truth in [*pairs, (on_all_data, pairs[-1][1])]:
        all_close(found, truth, EXACT)


@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
def test_local_reparameterization_of_one_datum_is_a_conditional_expectation(family):
    """So its variance is lower, by that of the rest, which is uncorrelated with it."""
    evaluation, mass = at_nodes("logistic", family, 1)

    @jax.jit
    def variances():
        plain, local = (estimator.estimate(evaluation, DATA) for estimator in (RP, LR))
        return [jnp.sum(total_variance(sample, evaluation, mass)) for sample in (plain, local, plain - local)]

    before, after, rest = variances()
    assert after < 0.95 * before
    np.testing.assert_allclose(after + rest, before, **EXPECTATION)


def test_a_row_of_zeros_has_no_noise_and_no_gradient(key):
    model = quell.logistic_regression([[0.0, 0.0], [1.0, -0.5]], [1, 0])
    family, params, noise, _ = catalogue.FAMILIES["full-rank"]
    problem = quell.Problem(model, family)
    draw = quell.Draw(jax.random.normal(key, (2, 2)), jnp.array([[0], [1]]))
    local, closed = Evaluation(problem, params, draw), Evaluation(problem, params, quell.Draw(draw.noise, None))

    @jax.jit
    def found():
        truth = jax.grad(lambda w: 0.5 * expected_value(log_likelihood(model, [1]), family, w, noise))(params)
        dense, grad = local.algebra.dense(LR.estimate(local, DATA)), jax.grad(lambda w: quell.exact_elbo(problem, w))
        return dense, closed.algebra.pullback(CF.estimate(closed, DATA)), truth, grad(params)

    dense, closed_form, truth, exact = found()
    assert all(bool(jnp.all(leaf[0] == 0) & jnp.any(leaf[1] != 0)) for leaf in dense)
    all_close(closed_form, truth, EXPECTATION)
    assert all(np.isfinite(leaf).all() for leaf in exact)


# The closed form of the data term

EXACT_BASE = quell.BaseGradient(data=CF_ALL, prior=CF, variational=CF)
GAUSSIAN = ("mean-field", "full-rank", "low-rank")


@pytest.mark.parametrize("family", GAUSSIAN)
def test_with_closed_forms_throughout_gradient_and_elbo_are_exact_to_rounding(family):
    """Whatever the draw, since nothing is random: one pass over the data gives both."""
    one, other = at_random("logistic", family, 4, None), at_random("logistic", family, 2, 3)
    exact = quell.exact_elbo(one.problem, one.params)
    grad = jax.grad(lambda w: quell.exact_elbo(one.problem, w))(one.params)
    for evaluation in (one, other):
        assert EXACT_BASE.is_exact(evaluation)
        all_close(evaluation.algebra.pullback(EXACT_BASE.sample(evaluation)), grad, EXACT)
        np.testing.assert_allclose(EXACT_BASE.elbo(evaluation), exact, **EXACT)
    assert not quell.BaseGradient(CF, CF, CF).is_exact(other), "on a minibatch it is not"


@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
@pytest.mark.parametrize("shared", [True, False])
def test_on_a_minibatch_the_closed_form_is_exact_for_that_minibatch(family, shared):
    (family, params, noise, _), index = catalogue.FAMILIES[family], jnp.array([[0, 3], [4, 1]])
    draw = quell.Draw(jnp.ones((2, 2)), index[0] if shared else index)
    evaluation = Evaluation(quell.Problem(MODELS["logistic"], family), params, draw)
    found = evaluation.algebra.dense(CF.estimate(evaluation, DATA))
    for replicate, rows in enumerate([index[0], index[0]] if shared else index):
        function = log_likelihood(MODELS["logistic"], rows)
        truth = jax.grad(lambda w, f=function: expected_value(f, family, w, noise))(params)
        all_close(jax.tree.map(lambda leaf, r=replicate: leaf[r], found), truth, EXPECTATION)


@pytest.mark.parametrize("family", GAUSSIAN)
def test_chunks_of_rows_give_the_sum_over_all_rows(family):
    """Two full chunks and a part of a third, against one quadratic of all rows."""
    rng = np.random.default_rng(1)
    num = 2 * ROWS_AT_ONCE + 5
    model = quell.poisson_regression(0.3 * rng.normal(size=(num, 2)), rng.integers(0, 3, num))
    family, params, *_ = catalogue.FAMILIES[family]
    problem = quell.Problem(model, family)
    evaluation = Evaluation(problem, params, quell.Draw(family.noise(jax.random.key(0), 1, jnp.float64), None))

    @jax.jit
    def both():
        variance = family.predictor_variance(params, model.data.features)
        whole = model.predictor.expand_expected(family.mean(params), variance, model.data)
        grad = evaluation.algebra.expected_quadratic_grad(whole, per_sample=False)
        found = CF_ALL.estimate(evaluation, DATA)
        return [evaluation.algebra.pullback(one) for one in (found, grad)]

    all_close(*both(), EXACT)


def test_many_rows_are_never_all_at_their_nodes():
    """No array of the compiled pass is as large as the features, beside the features."""
    num = 32 * ROWS_AT_ONCE
    problem = quell.Problem(quell.logistic_regression(np.ones((num, 40)), np.ones(num)), quell.MeanField(40))

    def gradient(data, params):
        here = eqx.tree_at(lambda p: p.model.data, problem, data)
        evaluation = Evaluation(here, params, quell.Draw(jnp.zeros((1, 40)), None))
        return evaluation.algebra.pullback(EXACT_BASE.sample(evaluation))

    compiled = jax.jit(gradient).lower(problem.model.data, problem.family.init(dtype=jnp.float64)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * num * 40 * 8


# Refusals


def test_refusals_say_why():
    logistic, function = catalogue.problem("logistic", "full-rank"), catalogue.problem("function", "mean-field")
    gamma = quell.Problem(MODELS["logistic"], quell.Gamma(2))
    bound = quell.JaakkolaJordan().apply(DATA, None)
    generalized, local = quell.GeneralizedReparameterization(), "local reparameterization needs"
    for estimator, problem, term, reason in (
        (RPT, function, DATA, "MeanField has no triangular scale matrix"),
        (PRICE, gamma, DATA, "Gamma has no Gaussian linear functions of its latent"),
        (LR, gamma, DATA, "Gamma has no Gaussian linear functions of its latent"),
        (CF, gamma, DATA, "Gamma has no Gaussian linear functions of its latent"),
        (LR, logistic, quell.Prior(), f"{local} the data term as it is, and prior was given"),
        (LR, logistic, bound, f"{local} the data term as it is, and bound(data) was given"),
        (LR, function, DATA, f"{local} a linear predictor, and Model(num_data=5, dim=2) is not known to have one"),
        (CF, function, DATA, "the log-likelihood is neither a quadratic in the latent nor one of a linear predictor"),
        (generalized, logistic, DATA, "FullRank has no generalized reparameterization"),
        (quell.Reparameterization(quell.CHOLESKY), gamma, DATA, "Gamma has no transport 'cholesky' (it has 'sample')"),
        (quell.ConditionalScoreFunction(), gamma, DATA, "the data term is not relaxed, so that there is nothing to"),
    ):
        assert str(estimator.refuses(problem, term)).startswith(reason)


def test_what_cannot_be_differentiated_twice_is_refused():
    def loop(z, rows):
        return -jax.lax.while_loop(lambda x: jnp.all(x < 3), lambda x: x + 1, rows - z[0])

    looped = quell.Problem(quell.Model(loop, lambda z: -jnp.sum(z**2), jnp.ones(3), jnp.zeros(2)), quell.FullRank(2))
    assert "the data term cannot be differentiated twice" in str(PRICE.refuses(looped, DATA))
