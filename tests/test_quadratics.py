# SPDX-License-Identifier: Apache-2.0
"""Quadratics that are kept between steps: anchored ones over all data, and ones fitted to the gradients seen."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from catalogue import FAMILIES, at_nodes
from exact import all_close, expectation, expected_value, total_variance
from quell.approximations.anchor import LatentAnchor, PredictorAnchor, expand_data, expand_prior
from quell.approximations.sketch import DenseSketch, DiagonalSketch, LowRankSketch
from quell.core.program import inner_programs
from quell.evaluation import Batch, Evaluation
from quell.models.row_sum import sum_over_rows
from quell.terms import joint
from tolerances import EXACT, EXPECTATION, QUIET

RP, CF, CF_ALL = quell.Reparameterization(), quell.ClosedForm(), quell.ClosedForm(full_data=True)
DATA, PRIOR = quell.Data(), quell.Prior()
DENSE = quell.AnchoredQuadratic(every=3, rows_at_once=4)
SHARED = quell.AnchoredQuadratic(curvature="low-rank", rank=2, rows_at_once=2)
RNG = np.random.default_rng(7)


def refreshed(approximation, problem, params, term=DATA):
    """The state after one step at other parameters than those of the catalogue."""
    there = jax.tree.map(lambda leaf: leaf - 0.2, params)
    draw = quell.Draw(jnp.ones((1, 2)), jnp.array([[0, 3]]))
    update = jax.jit(lambda w, state: approximation.update(term, Evaluation(problem, w, draw), state, None))
    return update(there, approximation.init(problem))


def pieces(quadratic, dim=2):
    return quadratic.constant, quadratic.slope, quadratic.curvature.matmul(jnp.eye(dim))


def batches(model, size):
    for rows in itertools.combinations(range(model.num_data), size):
        yield Batch(jax.tree.map(lambda leaf, rows=rows: leaf[jnp.array(rows)], model.data), is_full=False)


# The laws see what is kept


@pytest.mark.slow
@pytest.mark.parametrize("where", ["slope", "curvature", "unset"])
def test_an_error_in_what_is_kept_is_a_bias(where):
    """A thousandth in the slope or in the curvature of all data, or a state that claims to be set before it is."""
    evaluation, mass = at_nodes("logistic", "full-rank", 2)
    state = refreshed(DENSE, evaluation.problem, evaluation.params)
    leaf = {"slope": lambda s: s.quadratics["data"].slope, "curvature": lambda s: s.quadratics["data"].curvature.matrix}
    if where == "unset":
        wrong = eqx.tree_at(lambda s: s.is_set["data"], DENSE.init(evaluation.problem), jnp.ones((), bool))
    else:
        wrong = eqx.tree_at(leaf[where], state, replace_fn=lambda leaf: 1.001 * leaf)
    variate = quell.ControlVariate(DATA, RP, CF_ALL, DENSE)
    samples = [variate.sample(evaluation, one) for one in (state, wrong, DENSE.init(evaluation.problem))]
    right, biased, before = (expectation(sample, evaluation, mass) for sample in samples)
    zeros = jax.tree.map(jnp.zeros_like, right)
    all_close(right, zeros, EXPECTATION)
    with pytest.raises(AssertionError):
        all_close(biased, zeros, EXPECTATION)
    all_close(before, zeros, {"rtol": 0.0, "atol": 0.0})


# Sums over rows, and the expansions made of them


@pytest.mark.parametrize("at_once", [0, 1, 3, 4, 11, 100])
def test_chunks_of_any_length_give_the_same_sum(at_once):
    data = {"x": jnp.arange(22.0).reshape(11, 2), "n": jnp.arange(11)}

    def total(rows, counts):
        return jnp.sum(rows["x"] ** 2, axis=0, where=counts[:, None]), jnp.sum(rows["n"], where=counts)

    all_close(sum_over_rows(total, data, at_once=at_once), (jnp.sum(data["x"] ** 2, axis=0), jnp.asarray(55)), EXACT)


def bumpy_model(num_data=11, dim=4):
    data = {"x": jnp.asarray(RNG.normal(size=(num_data, dim))), "group": jnp.arange(num_data) % 3}

    def log_likelihood(z, batch):
        return -jnp.cosh(batch["x"] @ z) + jnp.sin(z[batch["group"]] * z[3])

    return quell.Model(log_likelihood, lambda z: -jnp.sum(z**4) + z[0] * z[1], data, dim)


@pytest.mark.parametrize("rows_at_once", [1, 16, 1000])
def test_chunked_expansion_is_the_taylor_polynomial(rows_at_once):
    model, anchor = bumpy_model(), jnp.array([0.3, -0.2, 0.5, 0.1])
    problem = quell.Problem(model, quell.MeanField(4))

    def take(products):
        return DenseSketch().take(jax.random.key(0), products, jnp.ones(4))

    @jax.jit
    def both(z):
        anchor = LatentAnchor(z, jnp.zeros((1, 4)))
        data = expand_data(problem, anchor, take, rows_at_once=rows_at_once)
        functions = (lambda z: jnp.sum(model.log_likelihood(z, model.data)), model.prior.log_prob)
        truth = [(f(z), jax.grad(f)(z), jax.hessian(f)(z)) for f in functions]
        return [pieces(data, 4), pieces(expand_prior(problem, anchor, take), 4)], truth

    all_close(*both(anchor), EXACT)


def symmetric(values):
    basis = np.linalg.qr(RNG.normal(size=(len(values), len(values))))[0]
    return jnp.asarray(basis * np.array(values) @ basis.T)


def test_a_sketch_of_sufficient_rank_is_the_matrix(key):
    scale = jnp.asarray(RNG.uniform(0.1, 2.0, size=6))
    matrix = symmetric([5.0, -3.0, 0.5, 0.0, 0.0, 0.0])
    for sketch in (DenseSketch(), LowRankSketch(3), LowRankSketch(50)):
        taken = jax.jit(lambda s=sketch: s.take(key, lambda columns: matrix @ columns, scale))()
        np.testing.assert_allclose(taken.matmul(jnp.eye(6)), matrix, **EXACT)
        assert jax.tree.structure(taken) == jax.tree.structure(sketch.empty(6))
        assert jax.tree.map(jnp.shape, taken) == jax.tree.map(jnp.shape, sketch.empty(6))


def test_a_sketch_takes_the_diagonal_exactly_where_there_is_nothing_else(key):
    values, scale = jnp.array([3.0, -1.0, 0.2, 7.0]), jnp.array([0.1, 1.0, 5.0, 0.3])
    taken = DiagonalSketch().take(key, lambda columns: values[:, None] * columns, scale)
    np.testing.assert_allclose(taken.values, values, **EXACT)


# The anchor and its refreshes


@pytest.mark.slow
def test_a_refresh_happens_at_multiples_only_and_holds_all_data():
    problem, start = catalogue.problem("function", "full-rank"), FAMILIES["full-rank"].params
    variate = quell.ControlVariate(joint(), RP, CF_ALL, approximation=DENSE)
    draw = quell.Draw(jnp.ones((1, 2)), jnp.array([[1, 3]]))
    update = jax.jit(lambda params, state: variate.update(Evaluation(problem, params, draw), state, None))
    state, anchors = variate.init(problem), []
    for step in range(7):
        state = update(quell.LocationScale(start.loc + step, start.scale), state)
        anchors.append(float(state.quadratics["data"].anchor[0] - start.loc[0]))
    np.testing.assert_allclose(anchors, [0, 0, 0, 3, 3, 3, 6], **EXACT)
    assert int(state.step) == 7

    def log_joint(z):
        return jnp.sum(problem.model.log_likelihood(z, problem.model.data)) + problem.model.prior.log_prob(z)

    latents = start.loc + 6.0 + state.anchor.offsets
    truth = [jnp.mean(jax.vmap(of(log_joint))(latents), axis=0) for of in (jax.grad, jax.hessian)]
    data, prior = (pieces(state.quadratics[name])[1:] for name in ("data", "prior"))
    all_close([one + two for one, two in zip(data, prior, strict=True)], truth, EXACT)


def test_only_what_the_variate_uses_is_refreshed():
    problem, params = catalogue.problem("function", "full-rank"), FAMILIES["full-rank"].params
    state = refreshed(DENSE, problem, params, PRIOR)
    assert (bool(state.is_set["prior"]), bool(state.is_set["data"])) == (True, False)
    assert not bool(jnp.any(state.quadratics["data"].slope))


def test_runs_that_are_vectorised_refresh_together_and_each_at_its_own_step():
    """A branch stays a branch, so that no refresh is paid at every step; what a run did not ask for is not kept."""
    problem, params = catalogue.problem("function", "mean-field"), FAMILIES["mean-field"].params
    draw = quell.Draw(jnp.ones((1, 2)), None)

    def update(params, state):
        return DENSE.update(PRIOR, Evaluation(problem, params, draw), state, None)

    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1.0]), params)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), DENSE.init(problem))
    states = eqx.tree_at(lambda s: s.step, states, jnp.array([0, 1], jnp.int32))
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(update))(many, states))
    after = jax.jit(jax.vmap(update))(many, states)
    assert after.is_set["prior"].tolist() == [True, False]
    np.testing.assert_allclose(after.quadratics["prior"].anchor, [params.loc, jnp.zeros(2)], **EXACT)


@pytest.mark.parametrize(
    "approximation", [quell.AnchoredQuadratic(every=1), quell.FittedQuadratic()], ids=["anchored", "fitted"]
)
def test_a_step_that_is_not_finite_leaves_the_quadratic_alone(approximation):
    model = quell.Model(lambda z, x: x * jnp.sqrt(z[0]), lambda z: -z @ z, jnp.array([0.5, 2.0]), 1)
    problem = quell.Problem(model, quell.MeanField(1))
    draw = quell.Draw(jnp.zeros((1, 1)), jnp.array([[0]]))

    @jax.jit
    def after(state, loc):
        params = quell.LocationScale(loc[None], jnp.array([-2.0]))
        return approximation.update(DATA, Evaluation(problem, params, draw), state, None)

    good = after(approximation.init(problem), jnp.asarray(1.0))
    bad = after(good, jnp.asarray(-1.0))
    quadratics = [state.quadratics["data"] if hasattr(state, "quadratics") else state for state in (good, bad)]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(bad))
    assert bool(jnp.any(quadratics[0].slope != 0))
    np.testing.assert_allclose(*(quadratic.grad(jnp.array([0.7])) for quadratic in quadratics), **EXACT)


@pytest.mark.parametrize("name", ["logistic", "poisson", "function"])
def test_the_kept_quadratic_is_the_average_of_those_of_the_minibatches(name):
    problem, params = catalogue.problem(name, "full-rank"), FAMILIES["full-rank"].params
    state = refreshed(DENSE, problem, params)
    expand = jax.jit(lambda rows: pieces(state.anchor.expand(problem, rows).scale(5 / 2)))
    found = [expand(batch.rows) for batch in batches(problem.model, 2)]
    average = jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *found)
    all_close(average, pieces(state.quadratics["data"]), EXACT)
    assert float(jnp.linalg.norm(found[0][2] - found[1][2])) > 1e-3, "each has a curvature of its own"


def test_the_quadratic_of_a_minibatch_is_the_closest_one_under_the_q_of_the_refresh():
    """What it leaves is orthogonal, under that q, to every quadratic; to the coarse nodes' precision."""
    problem, (family, params, noise, _) = catalogue.problem("poisson", "full-rank"), FAMILIES["full-rank"]
    model, state = problem.model, refreshed(DENSE, problem, params)
    assert isinstance(state.anchor, PredictorAnchor)
    batch = next(batches(model, 2))
    then = jax.tree.map(lambda leaf: leaf - 0.2, params)

    def left(quadratic):
        def against(z):
            rest = jnp.sum(model.log_likelihood(z, batch.rows)) - quadratic.value(z)
            return rest * jnp.array([1.0, z[0], z[1], z[0] ** 2, z[0] * z[1], z[1] ** 2])

        return float(jnp.max(jnp.abs(expected_value(against, family, then, noise))))

    closest = left(state.anchor.expand(problem, batch.rows))
    assert closest < 1e-3
    assert left(model.expand(state.anchor.point, batch.rows)) > 10 * closest


@pytest.mark.slow
def test_latents_of_an_anchor_are_mirrored_at_the_mean(key):
    problem = catalogue.problem("function", "full-rank")
    anchor = LatentAnchor.at(problem, FAMILIES["full-rank"].params, key, 3)
    assert anchor.offsets.shape == (6, 2)
    np.testing.assert_allclose(jnp.sum(anchor.offsets, axis=0), 0.0, **EXACT)
    batch = next(batches(problem.model, 2))

    def value(z):
        return jnp.sum(problem.model.log_likelihood(z, batch.rows))

    def average(function):
        return jnp.mean(jax.vmap(function)(anchor.point + anchor.offsets), axis=0)

    truth = average(value), average(jax.grad(value)), average(jax.hessian(value))
    all_close(pieces(anchor.expand(problem, batch.rows)), truth, EXACT)


# Memory


def largest_array(jaxpr, ignored=()):
    """Numbers in the largest value of a program, loops and branches included."""
    sizes = [1]
    for equation in jaxpr.eqns:
        sizes += [var.aval.size for var in equation.outvars if var.aval.shape[-2:] not in ignored]
        sizes += [largest_array(inner, ignored) for inner in inner_programs(equation)]
    return max(sizes)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["diagonal", "low-rank"])
@pytest.mark.parametrize("family", [quell.MeanField, lambda dim: quell.LowRank(dim, 2)], ids=["mean-field", "low-rank"])
def test_memory_is_bounded(form, family, key):
    """Neither rows times dim times products, nor dim times dim; a dense form has the latter."""
    dim = 150
    data = jnp.asarray(RNG.normal(size=(1000, 2)))
    model = quell.Model(lambda z, x: jnp.tanh(x @ z.reshape(2, -1)).sum(axis=1), lambda z: -jnp.sum(z**4), data, dim)
    problem = quell.Problem(model, family(dim))
    params = problem.family.init()

    def largest(curvature):
        approximation = quell.AnchoredQuadratic(rows_at_once=64, rank=5, curvature=curvature)
        fitted = quell.FittedQuadratic(curvature="diagonal")
        variates = [
            quell.ControlVariate(joint(), RP, CF_ALL, approximation),
            quell.ControlVariate(joint(), RP, CF, fitted),
        ]
        gradient = quell.Gradient(problem, variates, sampler=quell.Sampler(1, 10))
        return largest_array(jax.make_jaxpr(gradient.update)(key, params, gradient.init(params)).jaxpr)

    assert largest(form) < dim * dim
    assert largest("dense") >= dim * dim


def test_a_step_on_a_minibatch_forms_no_matrix_for_a_mean_field_family():
    """Beside the Hessian that is kept: the curvature of the minibatch is seen through one product."""
    model = quell.logistic_regression(RNG.normal(size=(50, 30)), RNG.integers(0, 2, 50))
    problem = quell.Problem(model, quell.MeanField(30))
    draw = quell.Sampler(1, 3).draw(jax.random.key(0), problem.family, 50, jnp.float64)
    term = DENSE.apply(DATA, DENSE.init(problem))

    def grads(params):
        return term.grads(Evaluation(problem, params, draw), problem.family.sampling, full_data=False)

    jaxpr = jax.make_jaxpr(grads)(problem.family.init()).jaxpr
    assert largest_array(jaxpr, ignored=[(50, 30), (30, 30)]) < 30 * 30


# What they are worth


def share_left(name, approximation, size):
    """Of the variance of the data term by reparameterization, less the variate; after a refresh at the same q."""
    evaluation, mass = at_nodes(*name, size)
    variate = quell.ControlVariate(DATA, RP, CF_ALL, approximation)

    @jax.jit
    def shares():
        state = variate.update(evaluation, variate.init(evaluation.problem), None)
        base = RP.estimate(evaluation, DATA)
        rest = base - variate.sample(evaluation, state)
        return total_variance(rest, evaluation, mass) / total_variance(base, evaluation, mass)

    return np.asarray(shares())


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mean-field", "full-rank"])
def test_where_each_datum_is_a_quadratic_nothing_is_left_of_noise_and_subsampling(family):
    """In location and in scale; with one curvature for all minibatches much is left."""
    assert share_left(("gaussian", family), DENSE, 2).max() < 1e-18
    assert share_left(("gaussian", family), SHARED, 2).min() > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("name", [("logistic", "full-rank"), ("poisson", "mean-field"), ("function", "full-rank")])
def test_own_curvatures_leave_less_than_a_shared_one(name):
    own, shared = share_left(name, DENSE, 2), share_left(name, SHARED, 2)
    assert (own < 0.6 * shared).all(), (own, shared)


def settled(gradient, params, num_steps, key):
    """The state after some steps at fixed parameters."""

    @eqx.filter_jit
    def run(gradient, state, keys):
        return jax.lax.scan(lambda s, k: (gradient.update(k, params, s)[1], None), state, keys)[0]

    return run(gradient, gradient.init(params), jax.random.split(key, num_steps))


@eqx.filter_jit
def sampled_share(gradient, params, state, key, num=200):
    """Variance of the base gradient plus the variates with weight minus one, over that of the base gradient."""
    problem = gradient.problem
    sampler = quell.Sampler(num, gradient.sampler.batch_size)
    draw = sampler.draw(key, problem.family, problem.model.num_data, jnp.float64)
    evaluation = Evaluation(problem, params, draw)
    base, *variates = gradient.samples(evaluation, state)
    both = [base, base - sum(variates[1:], variates[0])]
    before, after = jnp.diagonal(evaluation.algebra.gram(both) - evaluation.algebra.mean_gram(both))
    return after / before


def gaussian_model(num_data=7, dim=3, factor=1.0):
    """A quadratic log-likelihood as plain functions: anchored and fitted quadratics can be exact."""
    data = {"x": jnp.asarray(RNG.normal(size=(num_data, dim))), "y": jnp.asarray(RNG.normal(size=num_data))}
    prior = -0.5 if factor == 1.0 else 0.0
    return quell.Model(lambda z, b: -0.5 * factor * (b["y"] - b["x"] @ z) ** 2, lambda z: prior * z @ z, data, dim)


EXACT_FITS = {
    "anchored, low-rank": (quell.MeanField(3), quell.AnchoredQuadratic(curvature="low-rank", rank=3), CF_ALL),
    "fitted": (quell.MeanField(3), quell.FittedQuadratic(), CF),
    "fitted, full-rank": (quell.FullRank(3), quell.FittedQuadratic(), CF),
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "approximation", "right"), EXACT_FITS.values(), ids=EXACT_FITS)
def test_a_conjugate_model_is_left_with_almost_no_variance(family, approximation, right, key):
    params = family.init(dtype=jnp.float64)
    params = quell.LocationScale(params.loc + jnp.array([0.3, -0.2, 0.5]), params.scale)
    variate = quell.ControlVariate(joint(), RP, right, approximation)
    gradient = quell.Gradient(quell.Problem(gaussian_model(), family), [variate])
    state = settled(gradient, params, 200, key)
    assert float(sampled_share(gradient, params, state, jax.random.key(1))) < QUIET["exact"]


def test_the_fit_is_the_expected_gradient_and_the_expected_hessian(key):
    """Not those at the mean: the function is far from a quadratic over the width of q."""
    model = quell.Model(lambda z, x: -0.1 * jnp.sum((z - x) ** 4, axis=1), lambda z: 0.0 * z[0], jnp.zeros((1, 2)), 2)
    family, params, noise, _ = FAMILIES["full-rank"]
    variates = [quell.ControlVariate(DATA, RP, CF, quell.FittedQuadratic(rate=0.01))]
    gradient = quell.Gradient(quell.Problem(model, family), variates, sampler=quell.Sampler(20))
    fitted = settled(gradient, params, 1000, key).variates[0]

    def value(z):
        return model.log_likelihood(z, model.data)[0]

    slope, hessian = (expected_value(of(value), family, params, noise) for of in (jax.grad, jax.hessian))
    far = float(jnp.linalg.norm(hessian - jax.hessian(value)(family.mean(params))))
    assert float(jnp.linalg.norm(fitted.curvature.matmul(jnp.eye(2)) - hessian)) < QUIET["fit"] * far
    np.testing.assert_allclose(fitted.grad(family.mean(params)), slope, atol=QUIET["fit"] * far)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_learning_does_not_depend_on_the_scale_of_the_gradients(factor, key):
    model = gaussian_model(factor=factor)
    problem = quell.Problem(model, quell.FullRank(3))
    params = problem.family.init(dtype=jnp.float64)
    variates = [quell.ControlVariate(joint(), RP, CF, quell.FittedQuadratic())]
    fitted = settled(quell.Gradient(problem, variates), params, 100, key).variates[0]
    exact = -factor * model.data["x"].T @ model.data["x"]
    error = float(jnp.linalg.norm(fitted.curvature.matmul(jnp.eye(3)) - exact))
    assert error < QUIET["scale"] * float(jnp.linalg.norm(exact))


# Refusals


def _looped(z, x):
    """A loop whose length depends on the latent has no reverse mode in JAX."""
    return x + jax.lax.while_loop(lambda s: s < 2.0, lambda s: 1.5 * s, z[0])


REFUSED = {
    "variational": (quell.Variational(), DENSE, "an anchored quadratic is one of the data or the prior term, and"),
    "score": (quell.Score(), quell.FittedQuadratic(), "the function of the score term is a constant"),
    "no derivative": (DATA, DENSE, "the data term cannot be differentiated twice in its latent (ValueErr"),
    "taylor": (DATA, quell.TaylorInLatent(), "the data term cannot be differentiated twice in its latent ("),
}


@pytest.mark.parametrize(("term", "approximation", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(term, approximation, reason):
    problem = quell.Problem(quell.Model(_looped, quell.NormalPrior(), jnp.ones(3), 1), quell.MeanField(1))
    assert approximation.refuses(problem, term).startswith(reason)


def test_a_family_without_moments_has_no_quadratics():
    problem = catalogue.problem("function", "sampling and density")
    for approximation in (DENSE, quell.FittedQuadratic(), quell.TaylorInLatent()):
        assert approximation.refuses(problem, DATA) == "ShiftedLogNormal has no moments in closed form"
