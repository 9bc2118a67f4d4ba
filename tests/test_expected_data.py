# SPDX-License-Identifier: Apache-2.0
"""The closed form of the data term of a linear predictor under a Gaussian family."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value, gauss_hermite
from quell.evaluation import Evaluation
from quell.families import LowRank
from quell.models import row_sum
from quell.terms import closed_form
from tolerances import EXACT, EXPECTATION, SINGLE

MODELS = {name: catalogue.MODELS[name] for name in ("logistic", "poisson")}
ALL = quell.BaseGradient(
    data=quell.ClosedForm(full_data=True), prior=quell.ClosedForm(), variational=quell.ClosedForm()
)


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


def single(tree):
    return jax.tree.map(lambda leaf: leaf.astype("float32") if eqx.is_array(leaf) else leaf, tree)


def low_rank():
    family = LowRank(2, rank=1, init_scale=0.8)
    return family, jax.tree.map(lambda leaf: leaf + 0.2, family.init(dtype=jnp.float64))


FAMILIES = {name: (f, catalogue.some_params(f)) for name, f in catalogue.FAMILIES.items()} | {"low-rank": low_rank()}


def evaluate(model, name, draw=None):
    family, params = FAMILIES[name]
    noise = jax.eval_shape(lambda key: family.noise(key, 1, jnp.float64), jax.random.key(0)).shape
    return Evaluation(quell.Problem(model, family), params, draw or quell.Draw(jnp.zeros(noise), None))


def expected_sum(model, family, params, rows):
    """The expected log-likelihood of some rows, by nodes of the whole latent."""
    problem = quell.Problem(model, family)
    batch = jax.tree.map(lambda x: x[jnp.asarray(rows)], model.data)
    if family.num_params == 6:  # of the low-rank one, whose noise is longer than its latent
        nodes, mass = gauss_hermite(2)
        root = jnp.linalg.cholesky(family.covariance_product(params, jnp.eye(2)))
        latents = family.mean(params) + jnp.asarray(nodes) @ root.T
        return jnp.asarray(mass) @ jax.vmap(lambda z: jnp.sum(model.log_likelihood(z, batch)))(latents)
    return expected_value(lambda z: jnp.sum(model.log_likelihood(z, batch)), problem, params)


@pytest.mark.parametrize(("model", "family"), list(itertools.product(MODELS, FAMILIES)))
def test_it_is_the_gradient_of_the_expectation(model, family):
    evaluation = evaluate(MODELS[model], family)
    found = quell.ClosedForm().estimate(evaluation, quell.Data())
    truth = jax.grad(lambda w: expected_sum(MODELS[model], FAMILIES[family][0], w, range(5)))(evaluation.params)
    all_close(evaluation.algebra.pullback(found), truth, EXPECTATION)


@pytest.mark.parametrize("family", FAMILIES)
def test_with_closed_forms_throughout_the_gradient_is_that_of_the_exact_elbo_to_rounding(family):
    evaluation = evaluate(MODELS["logistic"], family)
    found = evaluation.algebra.pullback(ALL.sample(evaluation))
    all_close(found, jax.grad(lambda w: quell.exact_elbo(evaluation.problem, w))(evaluation.params), EXACT)


def test_such_a_gradient_has_no_noise():
    problem = quell.Problem(MODELS["logistic"], quell.FullRank(2))
    gradient = quell.Gradient(problem, base=ALL, sampler=quell.Sampler(1, 2))
    params = catalogue.some_params(problem.family)
    update = jax.jit(lambda key: gradient.update(key, params, gradient.init(params))[0])
    all_close(update(jax.random.key(0)), update(jax.random.key(1)), {"rtol": 0.0, "atol": 0.0})


@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
@pytest.mark.parametrize("shared", [True, False])
def test_on_a_minibatch_it_is_exact_for_that_minibatch(family, shared):
    """Price and Bonnet by hand: one-dimensional Gauss-Hermite nodes, one datum at a time."""
    model, index = MODELS["logistic"], jnp.array([[0, 3], [4, 1]])
    draw = quell.Draw(jnp.ones((2, 2)), index[0] if shared else index)
    evaluation = evaluate(model, family, draw)
    found = evaluation.algebra.dense(quell.ClosedForm().estimate(evaluation, quell.Data()))
    for replicate, rows in enumerate([index[0], index[0]] if shared else index):
        total = jax.grad(lambda w, rows=rows: 2.5 * expected_sum(model, evaluation.problem.family, w, rows))
        one = jax.tree.map(lambda leaf, r=replicate: leaf[r], found)
        all_close(one, total(evaluation.params), EXPECTATION)


@pytest.mark.parametrize("right", [quell.ClosedForm(), quell.ClosedForm(full_data=True)])
def test_a_variate_with_it_has_mean_zero_and_removes_what_it_promises(right):
    problem = quell.Problem(MODELS["logistic"], quell.FullRank(2))
    draw, mass = exact_draw(problem, 2)
    evaluation = Evaluation(problem, catalogue.some_params(problem.family), draw)
    variate = quell.ControlVariate(quell.Data(), quell.Reparameterization(), right)
    sample = variate.sample(evaluation, variate.init(problem))
    mean = expectation(sample, evaluation, mass)
    all_close(mean, jax.tree.map(jnp.zeros_like, mean), EXPECTATION)
    rest = quell.Reparameterization().estimate(evaluation, quell.Data()) - sample
    spread = expectation(rest, evaluation, mass)
    dense = evaluation.algebra.dense(rest)
    variance = sum(mass @ jnp.sum((a - b) ** 2, axis=range(1, a.ndim)) for a, b in zip(dense, spread, strict=True))
    assert (variance < 1e-20) == right.full_data, "on all data nothing is left, on the minibatch its own noise is"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_few_rows_at_a_time_give_the_same(family, at_once, monkeypatch):
    evaluation = evaluate(MODELS["poisson"], family)

    def gradient():
        found = quell.ClosedForm(full_data=True).estimate(evaluation, quell.Data())
        return evaluation.algebra.pullback(found)

    whole, elbo = gradient(), quell.exact_elbo(evaluation.problem, evaluation.params)
    monkeypatch.setattr(closed_form, "ROWS_AT_ONCE", at_once)
    monkeypatch.setattr(row_sum, "ROWS_AT_ONCE", at_once)
    all_close(jax.jit(gradient)(), whole, EXACT)
    all_close(quell.exact_elbo(evaluation.problem, evaluation.params), elbo, EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_is_enough_for_gradient_and_elbo(family, monkeypatch):
    """The ELBO of the draw is that of a pass of its own, and on a minibatch nothing is kept of all data."""
    noise = FAMILIES[family][0].noise(jax.random.key(0), 4, jnp.float64)
    evaluation = evaluate(MODELS["poisson"], family, quell.Draw(noise, None))
    alone = ALL.elbo(evaluation)
    ALL.sample(evaluation)
    monkeypatch.setattr(Evaluation, "map", None)
    all_close(ALL.elbo(evaluation), alone, EXACT)
    on_minibatch = evaluate(MODELS["poisson"], family, quell.Draw(noise, jnp.array([0, 1])))
    quell.ClosedForm(full_data=True).estimate(on_minibatch, quell.Data())
    assert not on_minibatch.known_values


def test_accelerators_take_more_rows_at_once(monkeypatch):
    assert row_sum.rows_for(100) == row_sum.ROWS_AT_ONCE == row_sum.rows_for(1024)
    assert row_sum.rows_for(4096) == 1024
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert row_sum.rows_for(100) == 2**18
    assert row_sum.rows_for(4096) == 2**14


def test_many_rows_are_never_all_at_their_nodes():
    """No array of the compiled pass is as large as the features, beside the features."""
    num = 32 * row_sum.ROWS_AT_ONCE
    problem = quell.Problem(quell.logistic_regression(np.ones((num, 40)), np.ones(num)), quell.MeanField(40))

    def gradient(data, params):
        here = eqx.tree_at(lambda p: p.model.data, problem, data)
        evaluation = Evaluation(here, params, quell.Draw(jnp.zeros((1, 40)), None))
        return evaluation.algebra.pullback(ALL.sample(evaluation))

    compiled = jax.jit(gradient).lower(problem.model.data, problem.family.init(dtype=jnp.float64)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 0.5 * num * 40 * 8


@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
def test_the_expected_expansion_is_the_closest_quadratic_in_mean_square(family):
    """What it leaves is orthogonal, under q, to every quadratic."""
    model, (family, params) = MODELS["poisson"], FAMILIES[family]
    problem = quell.Problem(model, family)
    variance = family.predictor_variance(params, model.data.features)
    quadratic = model.expand_expected(family.mean(params), variance, model.data)

    def against(z):
        rest = jnp.sum(model.log_likelihood(z, model.data)) - quadratic.value(z)
        return rest * jnp.array([1.0, z[0], z[1], z[0] ** 2, z[0] * z[1], z[1] ** 2])

    np.testing.assert_allclose(expected_value(against, problem, params), 0.0, **EXPECTATION)
    taylor = model.expand(family.mean(params), model.data)
    assert abs(expected_value(lambda z: against(z)[0] + quadratic.value(z) - taylor.value(z), problem, params)) > 1e-3


def test_single_precision_is_near_double():
    evaluation = evaluate(MODELS["logistic"], "full-rank")
    double = evaluation.algebra.pullback(ALL.sample(evaluation))
    problem, params = quell.Problem(single(MODELS["logistic"]), evaluation.problem.family), single(evaluation.params)
    other = Evaluation(problem, params, quell.Draw(jnp.zeros((1, 2), "float32"), None))
    found = other.algebra.pullback(ALL.sample(other))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    all_close(found, double, SINGLE)


def test_a_row_of_zeros_is_no_trouble():
    model = quell.logistic_regression(np.array([[0.0, 0.0], [1.0, 2.0]]), [1, 0])
    evaluation = evaluate(model, "full-rank")
    found = evaluation.algebra.pullback(quell.ClosedForm().estimate(evaluation, quell.Data()))
    truth = jax.grad(lambda w: expected_sum(model, evaluation.problem.family, w, [1]))(evaluation.params)
    all_close(found, truth, EXPECTATION)
    exact = jax.grad(lambda w: quell.exact_elbo(evaluation.problem, w))(evaluation.params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(exact))


@pytest.mark.parametrize(
    ("model", "family", "reason"),
    [
        (catalogue.MODELS["function"], quell.MeanField(2), "neither a quadratic in the latent nor one of a linear"),
        (MODELS["logistic"], quell.Gamma(2), "Gamma is not Gaussian, so that no predictor is a normal"),
    ],
)
def test_elsewhere_it_is_refused_with_a_reason(model, family, reason):
    assert reason in quell.ClosedForm().refuses(quell.Problem(model, family), quell.Data())
