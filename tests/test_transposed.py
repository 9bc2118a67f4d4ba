# SPDX-License-Identifier: Apache-2.0
"""The transposed reparameterization, and the skew variate that it makes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value
from quell.evaluation import Evaluation
from quell.families.base import dense_gram
from tolerances import EXACT, EXPECTATION

RP, RPT = quell.Reparameterization(), quell.TransposedReparameterization()
FAMILIES = {name: family for name, family in catalogue.FAMILIES.items() if name.startswith("full-rank")}
LOGISTIC = catalogue.MODELS["logistic"]


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


def exactly(family, size, model=LOGISTIC):
    problem = quell.Problem(model, family)
    draw, mass = exact_draw(problem, size)
    return Evaluation(problem, catalogue.some_params(family), draw), mass


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_is_the_formula(family):
    """By hand, for one replicate."""
    noise = jnp.array([[0.7, -1.2]])
    params = catalogue.some_params(family)
    evaluation = Evaluation(quell.Problem(LOGISTIC, family), params, quell.Draw(noise, None))
    tril = family.scale_tril(params)
    z = params.loc + tril @ noise[0]
    grad = jax.grad(lambda z: jnp.sum(LOGISTIC.log_likelihood(z, LOGISTIC.data)))(z)
    scale = jnp.tril(jnp.outer(jnp.linalg.inv(tril).T @ noise[0], tril.T @ grad))
    chain = jnp.where(jnp.eye(2) > 0, tril if family.log_scale else 1.0, 1.0)
    found = evaluation.algebra.pullback(RPT.estimate(evaluation, quell.Data()))
    all_close(found, quell.LocationScale(grad, scale * chain), EXACT)


@pytest.mark.parametrize("term", [quell.Data(), quell.Prior(), quell.Variational()])
@pytest.mark.parametrize("full_data", [False, True])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_it_is_unbiased(family, full_data, term):
    evaluation, mass = exactly(family, 2)
    found = quell.TransposedReparameterization(full_data=full_data).estimate(evaluation, term)
    path = quell.Reparameterization(full_data=full_data).estimate(evaluation, term)
    all_close(expectation(found, evaluation, mass), expectation(path, evaluation, mass), EXPECTATION)
    spread = jnp.max(jnp.abs(evaluation.algebra.dense(found - path).scale))
    assert (float(spread) > 1e-3) == (term.name != "variational"), "they differ, except where the gradient is the noise"


def test_the_gradient_is_that_of_the_expectation():
    family = FAMILIES["full-rank"]
    evaluation, mass = exactly(family, 2)

    def value(w):
        return expected_value(lambda z: jnp.sum(LOGISTIC.log_likelihood(z, LOGISTIC.data)), evaluation.problem, w)

    found = expectation(RPT.estimate(evaluation, quell.Data()), evaluation, mass)
    all_close(found, jax.grad(value)(evaluation.params), EXPECTATION)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_skew_variate_has_mean_zero_and_a_planted_error_is_caught(family):
    evaluation, mass = exactly(family, 2)
    variate = quell.ControlVariate(quell.Data(), RP, RPT)
    assert variate.refuses(evaluation.problem) is None
    sample = variate.sample(evaluation, variate.init(evaluation.problem))
    zeros = jax.tree.map(jnp.zeros_like, evaluation.params)
    all_close(expectation(sample, evaluation, mass), zeros, EXPECTATION)
    wrong = sample + RP.estimate(evaluation, quell.Data()) * 1e-4
    with pytest.raises(AssertionError):
        all_close(expectation(wrong, evaluation, mass), zeros, EXPECTATION)


def total_variance(sample, evaluation, mass):
    dense, mean = evaluation.algebra.dense(sample), expectation(sample, evaluation, mass)
    return sum(float(mass @ jnp.sum((d - m) ** 2, axis=range(1, d.ndim))) for d, m in zip(dense, mean, strict=True))


QUADRATICS = {
    "as bent in both coordinates": np.array([[1.0, 0.8], [0.8, 1.0]]),
    "any": np.array([[1.0, 0.4], [0.3, 2.0], [-0.5, 1.0]]),
}


@pytest.mark.parametrize("name", QUADRATICS)
def test_on_a_quadratic_the_two_together_are_quieter_than_each(name):
    """The average is quieter than the two are on average, and the best weight quieter than each.

    Where the coordinates can be exchanged both are equally noisy, and the average is the best.
    """
    model = quell.gaussian_regression(QUADRATICS[name], np.zeros(len(QUADRATICS[name])))
    family = quell.FullRank(2, log_scale=False, init_scale=0.7)
    problem = quell.Problem(model, family)
    draw, mass = exact_draw(problem, None)
    evaluation = Evaluation(problem, family.init(dtype=jnp.float64), draw)
    one, two = (estimator.estimate(evaluation, quell.Data()) for estimator in (RP, RPT))
    first, second, skew = (total_variance(sample, evaluation, mass) for sample in (one, two, one - two))
    average = total_variance(one * 0.5 + two * 0.5, evaluation, mass)
    weight = 0.5 * (first - second + skew) / skew
    best = total_variance(one * (1.0 - weight) + two * weight, evaluation, mass)
    assert average < 0.97 * 0.5 * (first + second)
    assert best < 0.99 * min(first, second)
    if name == "as bent in both coordinates":
        np.testing.assert_allclose([second, average], [first, best], **EXACT)


def test_factored_equals_dense(key):
    family = FAMILIES["full-rank"]
    draw = quell.Sampler(4, 2).draw(key, family, 5, jnp.float64)
    problem = quell.Problem(LOGISTIC, family)

    @jax.jit
    def both_ways(params):
        evaluation = Evaluation(problem, params, draw)
        estimators = (RP, RPT, quell.ClosedForm(), quell.ScoreFunction())
        samples = [estimator.estimate(evaluation, quell.Data()) for estimator in estimators]
        dense = [evaluation.algebra.dense(sample) for sample in samples]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), full) for full in dense]
        pulled = [evaluation.algebra.pullback(sample) for sample in samples]
        return (evaluation.algebra.gram(samples), pulled), (dense_gram(dense), means)

    all_close(*both_ways(catalogue.some_params(family)), EXACT)


def test_it_is_refused_where_there_is_no_triangle():
    reason = RPT.refuses(quell.Problem(LOGISTIC, quell.MeanField(2)), quell.Data())
    assert reason.startswith("MeanField has no triangular scale to transpose")
