# SPDX-License-Identifier: Apache-2.0
"""The laws, over the whole catalogue, by exact expectation."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value
from quell.evaluation import Batch, Evaluation
from quell.families.base import dense_gram
from tolerances import EXACT, EXPECTATION, SINGLE

PROBLEMS = catalogue.problems()
CASES = [
    ("logistic, mean-field", 2),
    ("logistic, mean-field", 1),
    ("logistic, full-rank raw", 2),
    ("logistic, full-rank raw", None),
    ("poisson, mean-field raw", 2),
    ("gaussian, full-rank", 2),
    ("function, mean-field raw", 2),
    ("function, full-rank", 2),
]
"""Every model, every family and every kind of minibatch, though not each with each."""


LIGHT = ["logistic, mean-field", "logistic, full-rank raw", "function, full-rank"]


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


def valid_terms(problem):
    """Every term, approximated or not, that the problem allows."""
    for (name, term), (how, approximation) in itertools.product(
        catalogue.TERMS.items(), catalogue.APPROXIMATIONS.items()
    ):
        if approximation is None:
            yield name, term
        elif approximation.refuses(problem, term) is None:
            yield f"{how} of {name}", approximation.apply(term, catalogue.state(approximation, problem, term))


def true_gradient(problem, term, params):
    """The gradient of the exact expectation of the term's function, with the function held at the parameters."""

    def value(w):
        return expected_value(lambda z: term.values(_At(problem, params, z), "here", full_data=True)[0], problem, w)

    return jax.grad(value)(params)


class _At(Evaluation):
    """An evaluation whose only latent is given."""

    def __init__(self, problem, params, z):
        super().__init__(problem, params, quell.Draw(jnp.zeros((1, problem.family.dim)), None))
        self._latents = {"here": z[None]}


def exact_evaluation(problem, batch, *, replace=False):
    draw, mass = exact_draw(problem, batch, replace=replace)
    return Evaluation(problem, catalogue.some_params(problem.family), draw), mass


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), CASES)
def test_estimators_are_unbiased(name, batch):
    """Every estimator of every term, approximated or not; so the difference of any two has mean zero."""
    problem = PROBLEMS[name]
    evaluation, mass = exact_evaluation(problem, batch)
    checked = 0
    for _, term in valid_terms(problem):
        truth = true_gradient(problem, term, evaluation.params)
        for estimator in catalogue.ESTIMATORS.values():
            if estimator.refuses(problem, term) is None:
                all_close(expectation(estimator.estimate(evaluation, term), evaluation, mass), truth, EXPECTATION)
                checked += 1
    assert checked >= 30


@pytest.mark.parametrize(("name", "batch"), CASES)
def test_named_variates_have_mean_zero(name, batch):
    problem = PROBLEMS[name]
    evaluation, mass = exact_evaluation(problem, batch)
    named = [*quell.paper.VARIATES.values(), *quell.default_variates(problem), quell.literature.ranganath()]
    valid = [variate for variate in named if variate.refuses(problem) is None]
    for variate in valid:
        mean = expectation(variate.sample(evaluation, variate.init(problem)), evaluation, mass)
        all_close(mean, jax.tree.map(jnp.zeros_like, mean), EXPECTATION)
    assert len(valid) >= 3


@pytest.mark.parametrize("name", ["logistic, full-rank", "function, mean-field"])
def test_a_planted_error_is_caught(name):
    problem = PROBLEMS[name]
    evaluation, mass = exact_evaluation(problem, 1)
    term = quell.TaylorInLatent().apply(quell.Data(), None)
    right = quell.ClosedForm().estimate(evaluation, term)
    left = quell.Reparameterization().estimate(evaluation, term)
    zeros = jax.tree.map(jnp.zeros_like, evaluation.params)
    all_close(expectation(left - right, evaluation, mass), zeros, EXPECTATION)
    with pytest.raises(AssertionError):
        all_close(expectation(left - right * (1.0 + 1e-4), evaluation, mass), zeros, EXPECTATION)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", PROBLEMS)
def test_base_gradient_is_unbiased(name, replace):
    problem = PROBLEMS[name]
    evaluation, mass = exact_evaluation(problem, 2, replace=replace)
    mean = expectation(quell.BaseGradient().sample(evaluation), evaluation, mass)

    def elbo(w):
        def log_joint(z):
            return problem.model.log_likelihood(z, problem.model.data).sum() + problem.model.prior.log_prob(z)

        return expected_value(log_joint, problem, w) + problem.family.entropy(w)

    all_close(mean, jax.grad(elbo)(evaluation.params), EXPECTATION)


@pytest.mark.parametrize("name", PROBLEMS)
def test_entropy_and_density_agree_with_quadrature(name):
    problem = PROBLEMS[name]
    params = catalogue.some_params(problem.family)
    log_prob = partial(problem.family.log_prob, params)
    np.testing.assert_allclose(
        -expected_value(log_prob, problem, params), problem.family.entropy(params), **EXPECTATION
    )


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_moments_agree_with_quadrature(name):
    family = catalogue.FAMILIES[name]
    problem = quell.Problem(catalogue.MODELS["logistic"], family)
    params = catalogue.some_params(family)
    mean = expected_value(lambda z: z, problem, params)
    second = expected_value(lambda z: jnp.outer(z, z), problem, params)
    np.testing.assert_allclose(family.mean(params), mean, **EXPECTATION)
    covariance = family.covariance_product(params, jnp.eye(2))
    np.testing.assert_allclose(covariance, second - jnp.outer(mean, mean), **EXPECTATION)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_transport_has_the_distribution(name):
    problem = PROBLEMS[name]
    params = catalogue.some_params(problem.family)
    nodes = exact_draw(problem, None)
    for transport in problem.family.transports:
        latents = problem.family.algebra(params, nodes[0].noise).latents(transport)
        mean = nodes[1] @ latents
        covariance = (latents.T * nodes[1]) @ latents - jnp.outer(mean, mean)
        np.testing.assert_allclose(mean, problem.family.mean(params), **EXPECTATION)
        np.testing.assert_allclose(covariance, problem.family.covariance_product(params, jnp.eye(2)), **EXPECTATION)


def some_samples(evaluation):
    """Samples with every kind of part: all estimators of the data term in all approximations, and scores."""
    problem = evaluation.problem
    terms = [term for name, term in valid_terms(problem) if name.endswith("data") or name == "variational"]
    return [
        estimator.estimate(evaluation, term)
        for term, estimator in itertools.product(terms, catalogue.ESTIMATORS.values())
        if estimator.refuses(problem, term) is None
    ]


def sampled_evaluation(problem, key, *, shared=False):
    draw = quell.Sampler(3, 1, shared=shared).draw(key, problem.family, problem.model.num_data, jnp.float64)
    return Evaluation(problem, catalogue.some_params(problem.family), draw)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_factored_equals_dense(name, key):
    evaluation = sampled_evaluation(PROBLEMS[name], key)

    @jax.jit
    def both_ways(params):
        at = Evaluation(evaluation.problem, params, evaluation.draw)
        samples = some_samples(at)
        dense = [at.algebra.dense(sample) for sample in samples]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), full) for full in dense]
        pulled = [at.algebra.pullback(sample) for sample in samples]
        return (at.algebra.gram(samples), pulled), (dense_gram(dense), means)

    all_close(*both_ways(evaluation.params), EXACT)


@pytest.mark.release
@pytest.mark.parametrize("name", ["logistic, full-rank"])
def test_inner_products_of_averages(name, key):
    evaluation = sampled_evaluation(PROBLEMS[name], key, shared=True)
    samples = [quell.BaseGradient().sample(evaluation), *some_samples(evaluation)[:4]]
    means = [jax.tree.map(lambda x: x.mean(axis=0)[None], evaluation.algebra.dense(s)) for s in samples]
    np.testing.assert_allclose(evaluation.algebra.mean_gram(samples), dense_gram(means), **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 4])
def test_closed_form_of_minibatches_low_rank_and_dense_agree(rank, key):
    """A minibatch of one datum is kept as a low-rank form, one of four data is not; both match autodiff."""
    model = quell.logistic_regression(jax.random.normal(key, (6, 5)), [0, 1, 1, 0, 1, 0])
    family = quell.FullRank(5)
    params = quell.LocationScale(jnp.linspace(-0.5, 0.5, 5), family.init().scale + 0.1 * jnp.tril(jnp.ones((5, 5))))
    problem = quell.Problem(model, family)
    draw = quell.Sampler(2, rank).draw(key, family, 6, jnp.float64)
    evaluation = Evaluation(problem, params, draw)
    term = quell.TaylorInLatent().apply(quell.Data(), None)
    parts = quell.ClosedForm().estimate(evaluation, term)
    assert bool(parts.outers) == (rank == 1)
    dense = evaluation.algebra.dense(parts)
    for r in range(2):
        rows = jax.tree.map(lambda x, r=r: x[draw.index[r]], model.data)
        quadratic = quell.Data().expand(evaluation, params.loc, Batch(rows, is_full=False))
        truth = jax.grad(lambda w, q=quadratic: family.expected_quadratic(w, q))(params)
        all_close(jax.tree.map(lambda leaf, r=r: leaf[r], dense), truth, EXACT)


@pytest.mark.parametrize("name", ["logistic, mean-field", "logistic, full-rank"])
def test_jit_equals_eager_and_does_not_compile_twice(name, key):
    problem = PROBLEMS[name]
    params = catalogue.some_params(problem.family)
    gradient = quell.Gradient(problem, quell.default_variates(problem), sampler=quell.Sampler(4, 2))
    traces = []

    @jax.jit
    def update(key, params, state):
        traces.append(1)
        return gradient.update(key, params, state)

    state = gradient.init(params)
    for step in range(2):
        step_key = jax.random.fold_in(key, step)
        compiled, eager = update(step_key, params, state), gradient.update(step_key, params, state)
        all_close(compiled, eager, EXACT)
        assert jax.tree.structure(compiled[1]) == jax.tree.structure(state)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), compiled[1]) == jax.tree.map(
            lambda x: (x.shape, x.dtype), state
        )
        state = compiled[1]
    assert len(traces) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LIGHT if name.startswith("logistic")])
def test_float32_is_near_float64(name, key):
    problem = PROBLEMS[name]
    double = sampled_evaluation(problem, key)

    def single(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if _is_float(x) else x, tree)

    single_problem = single(problem)
    at = Evaluation(single_problem, single(double.params), single(double.draw))
    variates = quell.default_variates(problem)
    grams = []
    for evaluation in (double, at):
        samples = [v.sample(evaluation, v.init(evaluation.problem)) for v in variates]
        grams.append(evaluation.algebra.gram([quell.BaseGradient().sample(evaluation), *samples]))
    assert grams[1].dtype == jnp.float32
    np.testing.assert_allclose(grams[1], grams[0], **SINGLE)


def _is_float(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


@pytest.mark.parametrize("name", LIGHT)
def test_exact_weights_never_increase_the_exact_variance(name):
    problem = PROBLEMS[name]
    params = catalogue.some_params(problem.family)
    draw, mass = exact_draw(problem, 1)
    variates = quell.default_variates(problem)
    gradient = quell.Gradient(problem, variates, sampler=quell.Sampler(1, 1))
    state = gradient.init(params)
    evaluation = Evaluation(problem, params, draw)
    vectors = jnp.stack(
        [
            jnp.concatenate([leaf.reshape(len(mass), -1) for leaf in jax.tree.leaves(evaluation.algebra.dense(s))], 1)
            for s in gradient.samples(evaluation, state)
        ]
    )
    joint = jnp.einsum("knd,lnd,n->kl", vectors, vectors, mass)
    average = quell.combine.Moments.from_joint(joint)
    prior = quell.combine.isotropic(0.0, num_params=5, num_variates=len(variates), dtype=joint.dtype)
    sizes = []
    for count in range(len(variates) + 1):
        some = quell.combine.Moments(average.gram[:count, :count], average.cross[:count], average.base)
        some_prior = quell.NormalWishart(prior.gram[:count, :count], prior.cross[:count])
        weights = quell.combine.solve(some_prior, some, jnp.asarray(1.0)) if count else jnp.zeros(0)
        sizes.append(float(quell.combine.expected_sq_norm(some, weights)))
    assert all(after <= before * (1 + EXACT["rtol"]) for before, after in itertools.pairwise(sizes))
    assert sizes[-1] < 0.9 * sizes[0]


def test_every_recipe_has_a_name_of_its_own_and_one_line():
    found = catalogue.variates(PROBLEMS["logistic, full-rank"])
    assert len({variate.name for variate in found.values()}) == len(found)
    for variate in found.values():
        assert "\n" not in repr(variate)
        assert variate.formula in repr(variate)
    assert dataclasses.replace(next(iter(found.values())), label="mine").name == "mine"
