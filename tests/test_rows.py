# SPDX-License-Identifier: Apache-2.0
"""Expected log-likelihoods of minibatches, read from the program of a model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell
from numpyro_models import CASES, LABELS, LOGISTIC
from quell.evaluation import Evaluation, row_by_row
from quell.evaluation.expectation import Expectation
from quell.structure import read_structure
from structured_models import MODELS, OPAQUE
from tolerances import EXACT, EXPECTATION

DATA, CF = quell.Data(), quell.ClosedForm()
FAMILIES = {"full-rank": quell.FullRank, "mean-field": quell.MeanField, "low-rank": lambda dim: quell.LowRank(dim, 1)}
SEVERAL = ("weibull", "gaussian", "crossed_groups")
"""Rows of two programs, of several addends of one group, and of groups that few rows see."""


def made(name, family="full-rank"):
    model = quell.from_numpyro({**MODELS, **OPAQUE}[name])
    return row_by_row(quell.Problem(model, FAMILIES[family](model.dim)))


def somewhere(family):
    """Narrow, so that few nodes are enough."""
    leaves, tree = jax.tree.flatten(family.init())
    noise = np.random.default_rng(0)
    params = jax.tree.unflatten(tree, [leaf + 0.05 * noise.normal(size=leaf.shape) for leaf in leaves])
    return params._replace(scale=jnp.tril(params.scale)) if isinstance(family, quell.FullRank) else params


def gradients(problem, params, index):
    """The mean over replicates, each of some data."""
    num = 1 if index is None or index.ndim == 1 else index.shape[0]
    noise = problem.family.noise(jax.random.key(0), num, float)
    evaluation = Evaluation(problem, params, quell.Draw(noise, index))
    return evaluation.algebra.pullback(CF.estimate(evaluation, DATA))


@pytest.mark.parametrize(("name", "family"), [*((name, "full-rank") for name in SEVERAL), ("gaussian", "low-rank")])
def test_the_mean_over_all_minibatches_is_the_gradient_of_all_data(name, family):
    problem = made(name, family)
    params, num = somewhere(problem.family), problem.model.num_data

    @jax.jit
    def both(params):
        return gradients(problem, params, jnp.arange(num)[:, None]), gradients(problem, params, None)

    mean, whole = both(params)
    likelihood = read_structure(
        lambda z: jnp.sum(problem.model.log_likelihood(z, problem.model.data)), problem.model.dim
    )
    expectation = Expectation.of(likelihood, float)
    exact = jax.jit(jax.grad(lambda params: expectation(problem.family.gaussian(params))))(params)
    for found in (mean, whole):
        jax.tree.map(lambda one, two: np.testing.assert_allclose(jnp.ravel(one), jnp.ravel(two), **EXACT), found, exact)


@pytest.mark.parametrize("family", ["full-rank", "mean-field"])
def test_minibatches_are_those_of_a_linear_predictor(family):
    """The same logistic regression, in NumPyro and of linear predictors: two derivations of one gradient."""
    features = np.concatenate([np.asarray(LOGISTIC.args[0]), np.ones((40, 1))], axis=1)
    problems = [
        quell.Problem(quell.logistic_regression(features, LABELS), FAMILIES[family](4)),
        row_by_row(quell.Problem(quell.from_numpyro(LOGISTIC.model, *LOGISTIC.args), FAMILIES[family](4))),
    ]
    params = somewhere(problems[0].family)
    index = jnp.asarray([[3, 7, 11], [0, 0, 39]])
    found = [jax.jit(lambda params, one=one: gradients(one, params, index))(params) for one in problems]
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXPECTATION), *found)


def test_what_is_not_understood_has_no_closed_form():
    problem = made("network")
    assert problem.rows is None
    assert "neither a quadratic" in CF.refuses(problem, DATA)


def student():
    case = CASES["student t"]
    return quell.from_numpyro(case.model, *case.args, **case.kwargs)


@pytest.mark.release
def test_the_catalogue_has_closed_forms_of_a_model_in_numpyro():
    found = quell.catalogue(student(), quell.MeanField(5))
    assert "data: rp - cf" in [entry.name for entry in found.valid]


@pytest.mark.slow
def test_a_fit_with_exact_rows():
    """Nothing is left but the noise of picking rows, and that of the prior."""
    model, family = student(), quell.MeanField(5)
    options = {"variates": (), "base": quell.BaseGradient(data=CF), "sampler": quell.Sampler(2, 20)}
    result = quell.fit(model, family, **options, steps=300, key=jax.random.key(0))
    assert result.problem.rows is not None
    exact = quell.evaluation.exactly(result.problem)
    best = quell.fit(model, family, key=jax.random.key(0))
    assert quell.exact_elbo(exact, result.params) > best.final_elbo.value - 1.0
