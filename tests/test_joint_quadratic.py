# SPDX-License-Identifier: Apache-2.0
"""Anchored quadratics whose minibatches have curvatures of their own: noise and subsampling corrected together."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import exact_draw, expectation, expected_value
from quell.approximations.anchor import LatentAnchor, PredictorAnchor
from quell.evaluation import Batch, Evaluation
from quell.terms import joint
from tolerances import EXACT, EXPECTATION

pytestmark = pytest.mark.slow

PROBLEMS = catalogue.problems()
RP, CF, CF_ALL = quell.Reparameterization(), quell.ClosedForm(), quell.ClosedForm(full_data=True)
SF = quell.ScoreFunction()
DATA = quell.Data()
DENSE = quell.AnchoredQuadratic(rows_at_once=2)
SHARED = quell.AnchoredQuadratic(curvature="low-rank", rank=2, rows_at_once=2)


def all_close(left, right, tolerance) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


def zeros(tree):
    return jax.tree.map(jnp.zeros_like, tree)


LAWS = [
    ("logistic, mean-field", 1),
    ("logistic, full-rank", 2),
    ("logistic, full-rank raw", None),
    ("poisson, full-rank", 2),
    ("function, mean-field raw", 2),
]


@pytest.mark.parametrize(("name", "size"), LAWS)
def test_variates_have_mean_zero(name, size):
    """By nodes and all minibatches, in location and scale; the state is that of another q."""
    problem = PROBLEMS[name]
    draw, mass = exact_draw(problem, size)
    state = catalogue.state(DENSE, problem, joint())
    recipes = [(DATA, RP, CF_ALL), (DATA, RP, CF), (DATA, SF, RP), (joint(), RP, CF_ALL)]
    variates = [quell.ControlVariate(*recipe, approximation=DENSE) for recipe in recipes]
    assert [variate.refuses(problem) for variate in variates] == [None] * 4

    @jax.jit
    def found(params):
        evaluation = Evaluation(problem, params, draw)
        samples = [variate.sample(evaluation, state) for variate in variates]
        return [expectation(s, evaluation, mass) for s in samples], jnp.diagonal(evaluation.algebra.gram(samples))

    means, sizes = found(catalogue.some_params(problem.family))
    all_close(means, zeros(means), EXPECTATION)
    assert bool(jnp.all(sizes > 1e-4)), "none of them is zero itself"


@pytest.mark.parametrize(
    "where", [lambda s: s.quadratics["data"].slope, lambda s: s.quadratics["data"].curvature.matrix]
)
def test_a_planted_error_is_caught(where):
    """A thousandth in the slope or in the curvature that is kept."""
    problem = PROBLEMS["logistic, full-rank"]
    draw, mass = exact_draw(problem, 2)
    wrong = eqx.tree_at(where, catalogue.state(DENSE, problem, DATA), replace_fn=lambda leaf: 1.001 * leaf)
    evaluation = Evaluation(problem, catalogue.some_params(problem.family), draw)
    variate = quell.ControlVariate(DATA, RP, CF_ALL, DENSE)
    mean = jax.jit(lambda: expectation(variate.sample(evaluation, wrong), evaluation, mass))()
    with pytest.raises(AssertionError):
        all_close(mean, zeros(mean), EXPECTATION)


def batches(problem, size):
    for rows in itertools.combinations(range(problem.model.num_data), size):
        yield Batch(jax.tree.map(lambda leaf, rows=rows: leaf[jnp.array(rows)], problem.model.data), is_full=False)


def pieces(quadratic, dim=2):
    return quadratic.constant, quadratic.slope, quadratic.curvature.matmul(jnp.eye(dim))


@pytest.mark.parametrize("name", ["logistic, mean-field", "poisson, full-rank", "function, full-rank"])
def test_the_kept_quadratic_is_the_average_of_those_of_the_minibatches(name):
    problem = PROBLEMS[name]
    term = DENSE.apply(DATA, catalogue.state(DENSE, problem, DATA))
    evaluation = Evaluation(problem, catalogue.some_params(problem.family), quell.Draw(jnp.zeros((1, 2)), None))

    @jax.jit
    def expanded(rows):
        return pieces(term.expand(evaluation, term.kept.anchor, Batch(rows, is_full=False)))

    found = [expanded(batch.rows) for batch in batches(problem, 2)]
    average = jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *found)
    all_close(average, pieces(term.kept), EXACT)
    assert float(jnp.linalg.norm(found[0][2] - found[1][2])) > 1e-3, "each has a curvature of its own"


def test_the_quadratic_of_a_minibatch_is_the_closest_one_under_the_q_of_the_refresh():
    """What it leaves is orthogonal, under that q, to every quadratic; to the rough nodes' precision."""
    problem = PROBLEMS["poisson, full-rank"]
    model, state = problem.model, catalogue.state(DENSE, problem, DATA)
    then = jax.tree.map(lambda leaf: leaf - 0.2, catalogue.some_params(problem.family))
    assert isinstance(state.anchor, PredictorAnchor)
    batch = next(batches(problem, 2))
    quadratic = state.anchor.expand(problem, batch.rows)
    taylor = model.expand(state.anchor.point, batch.rows)

    def left(quadratic):
        def against(z):
            rest = jnp.sum(model.log_likelihood(z, batch.rows)) - quadratic.value(z)
            return rest * jnp.array([1.0, z[0], z[1], z[0] ** 2, z[0] * z[1], z[1] ** 2])

        return float(jnp.max(jnp.abs(expected_value(against, problem, then))))

    assert left(quadratic) < 1e-3
    assert left(taylor) > 10 * left(quadratic)


def test_latents_of_q_are_mirrored_at_its_mean(key):
    problem = PROBLEMS["function, full-rank"]
    params = catalogue.some_params(problem.family)
    anchor = LatentAnchor.at(problem, params, key, 3)
    assert anchor.offsets.shape == (6, 2)
    np.testing.assert_allclose(jnp.sum(anchor.offsets, axis=0), 0.0, **EXACT)
    batch = next(batches(problem, 2))

    def value(z):
        return jnp.sum(problem.model.log_likelihood(z, batch.rows))

    def average(function):
        return jnp.mean(jax.vmap(function)(anchor.point + anchor.offsets), axis=0)

    truth = average(value), average(jax.grad(value)), average(jax.hessian(value))
    all_close(pieces(anchor.expand(problem, batch.rows)), truth, EXACT)


def variance_left(problem, approximation, size, *, params=None):
    """Of the data term by reparameterization, less the variate, over its own; after a refresh at the same q."""
    params = catalogue.some_params(problem.family) if params is None else params
    draw, mass = exact_draw(problem, size)
    variate = quell.ControlVariate(DATA, RP, CF_ALL, approximation)

    @jax.jit
    def shares():
        evaluation = Evaluation(problem, params, draw)
        state = variate.update(evaluation, variate.init(problem), None)
        base = RP.estimate(evaluation, DATA)
        found = []
        for sample in (base, base - variate.sample(evaluation, state)):
            dense, mean = evaluation.algebra.dense(sample), expectation(sample, evaluation, mass)
            parts = zip(dense, mean, strict=True)
            found.append(jnp.stack([mass @ jnp.sum((d - m) ** 2, axis=range(1, d.ndim)) for d, m in parts]))
        return found[1] / found[0]

    return np.asarray(shares())


@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
def test_where_each_datum_is_a_quadratic_nothing_is_left_of_noise_and_subsampling(family):
    """In location and in scale; with one curvature for all minibatches much is left."""
    problem = PROBLEMS[f"gaussian, {family}"]
    assert variance_left(problem, DENSE, 2).max() < 1e-18
    assert variance_left(problem, SHARED, 2).min() > 1e-2


@pytest.mark.parametrize("name", ["logistic, full-rank", "poisson, mean-field", "function, full-rank"])
def test_own_curvatures_leave_less_than_a_shared_one(name):
    own, shared = variance_left(PROBLEMS[name], DENSE, 2), variance_left(PROBLEMS[name], SHARED, 2)
    assert (own < 0.6 * shared).all(), (own, shared)


def test_the_quadratic_is_the_one_of_the_refresh_and_not_of_the_step():
    problem = PROBLEMS["logistic, full-rank"]
    term = DENSE.apply(DATA, catalogue.state(DENSE, problem, DATA))
    batch, params = next(batches(problem, 2)), catalogue.some_params(problem.family)
    draw = quell.Draw(jnp.zeros((1, 2)), None)
    moved = jax.tree.map(lambda leaf: leaf + 0.5, params)
    found = [pieces(term.expand(Evaluation(problem, w, draw), term.kept.anchor, batch)) for w in (params, moved)]
    all_close(*found, EXACT)


def test_a_refresh_that_is_not_finite_is_left_out():
    problem = PROBLEMS["logistic, full-rank"]
    state = catalogue.state(quell.AnchoredQuadratic(every=1), problem, DATA)
    bad = jax.tree.map(lambda leaf: jnp.nan * leaf, catalogue.some_params(problem.family))
    evaluation = Evaluation(problem, bad, quell.Draw(jnp.zeros((1, 2)), None))
    after = quell.AnchoredQuadratic(every=1).update(DATA, evaluation, state, None)
    all_close((after.quadratics, after.anchor), (state.quadratics, state.anchor), EXACT)
    assert int(after.step) == int(state.step) + 1


def test_a_step_on_a_minibatch_forms_no_matrix_for_a_mean_field_family():
    """Beside the Hessian that is kept: the curvature of the minibatch is seen through one product."""
    rng = np.random.default_rng(0)
    model = quell.logistic_regression(rng.normal(size=(50, 30)), rng.integers(0, 2, 50))
    problem = quell.Problem(model, quell.MeanField(30))
    draw = quell.Sampler(1, 3).draw(jax.random.key(0), problem.family, 50, jnp.float64)
    term = DENSE.apply(DATA, DENSE.init(problem))

    def grads(params):
        return term.grads(Evaluation(problem, params, draw), "diagonal", full_data=False)

    shapes = [v.aval.shape for e in jax.make_jaxpr(grads)(problem.family.init()).jaxpr.eqns for v in e.outvars]
    assert max(int(np.prod(shape)) for shape in shapes if shape[-2:] != (50, 30)) < 30 * 30
