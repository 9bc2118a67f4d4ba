# SPDX-License-Identifier: Apache-2.0
"""Quadratics that are kept between steps: anchored ones over all data, and ones fitted to the gradients seen."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quell.approximations.full_expansion import expand_data, expand_prior

import catalogue
import quell
from exact import exact_draw, expectation
from quell.approximations.anchor import LatentAnchor
from quell.approximations.sketch import DenseSketch, DiagonalSketch, LowRankSketch
from quell.evaluation import Evaluation
from quell.families.base import dense_gram
from quell.models.quadratic import DenseCurvature, DiagonalCurvature, FactoredCurvature, SumCurvature
from quell.models.row_sum import sum_over_rows
from quell.terms import joint
from test_laws import all_close, exact_evaluation, sampled_evaluation
from tolerances import EXACT, EXPECTATION, QUIET, SINGLE

pytestmark = pytest.mark.slow

PROBLEMS = catalogue.problems()
RP, RP_ALL = quell.Reparameterization(), quell.Reparameterization(full_data=True)
CF, CF_ALL = quell.ClosedForm(), quell.ClosedForm(full_data=True)
PAIRS = ((RP, CF), (RP, CF_ALL), (CF, CF_ALL), (RP, RP_ALL), (quell.ScoreFunction(), RP))
RNG = np.random.default_rng(7)


def anchored(form="dense", **options):
    return quell.AnchoredQuadratic(**{"every": 3, "curvature": form, "rank": 2, "rows_at_once": 4, **options})


def gaussian_model(num_data=7, dim=3):
    """A quadratic log-joint as plain functions: anchored and fitted quadratics can be exact."""
    features = jnp.asarray(RNG.normal(size=(num_data, dim)))
    data = {"x": features, "y": jnp.asarray(RNG.normal(size=num_data))}
    return quell.Model(lambda z, b: -0.5 * (b["y"] - b["x"] @ z) ** 2, lambda z: -0.5 * z @ z, data, dim)


# Laws at states that were refreshed


STATES = {
    "empty": ("function, full-rank", 2, anchored(), 0),
    "dense": ("function, full-rank", 2, anchored(), 1),
    "low-rank": ("function, mean-field raw", 1, anchored("low-rank"), 1),
    "diagonal": ("logistic, mean-field", None, anchored("diagonal"), 1),
    "diagonal, full-rank": ("function, full-rank raw", 1, anchored("diagonal"), 1),
    "fitted": ("function, full-rank", 1, quell.FittedQuadratic(), 2),
    "fitted, diagonal": ("function, mean-field", None, quell.FittedQuadratic(curvature="diagonal"), 2),
}


@pytest.mark.parametrize(("name", "size", "approximation", "num_updates"), STATES.values(), ids=STATES)
def test_variates_have_mean_zero(name, size, approximation, num_updates):
    problem = PROBLEMS[name]
    at, mass = exact_evaluation(problem, size)
    recipes = [(quell.Data(), *pair) for pair in PAIRS] + [(term, RP, CF_ALL) for term in (quell.Prior(), joint())]
    variates = [quell.ControlVariate(*recipe, approximation=approximation) for recipe in recipes]
    assert [variate.refuses(problem) for variate in variates] == [None] * 7
    state = catalogue.state(approximation, problem, joint(), num_updates=num_updates)

    @jax.jit
    def found(params, state):
        evaluation = Evaluation(problem, params, at.draw)
        samples = [variate.sample(evaluation, state) for variate in variates]
        means = [expectation(sample, evaluation, mass) for sample in samples]
        return means, evaluation.algebra.gram(samples[1:2])[0, 0]

    means, size = found(at.params, state)
    for mean in means:
        all_close(mean, jax.tree.map(jnp.zeros_like, mean), EXPECTATION)
    assert (size > EXACT["atol"]) == (num_updates > 0), "before the first refresh it is zero"


def test_a_planted_error_is_caught():
    """A full-data gradient that is off by a thousandth, or one that the first step does not wait for."""
    problem = PROBLEMS["function, full-rank"]
    evaluation, mass = exact_evaluation(problem, 2)
    state = catalogue.state(anchored(), problem, quell.Data())
    variate = quell.ControlVariate(quell.Data(), RP, CF_ALL, approximation=anchored())
    wrong = eqx.tree_at(lambda s: s.quadratics["data"].slope, state, replace_fn=lambda x: 1.001 * x)
    unset = eqx.tree_at(lambda s: s.is_set["data"], anchored().init(problem), jnp.ones((), bool))
    mean = eqx.filter_jit(lambda s: expectation(variate.sample(evaluation, s), evaluation, mass))
    all_close(mean(state), jax.tree.map(jnp.zeros_like, evaluation.params), EXPECTATION)
    for planted in (wrong, unset):
        with pytest.raises(AssertionError):
            all_close(mean(planted), jax.tree.map(jnp.zeros_like, evaluation.params), EXPECTATION)


@pytest.mark.parametrize(("name", "form"), [("function, full-rank", "low-rank"), ("function, mean-field", "dense")])
def test_factored_equals_dense(name, form, key):
    at = sampled_evaluation(PROBLEMS[name], key)
    term = anchored(form).apply(quell.Data(), catalogue.state(anchored(form), at.problem, quell.Data()))

    @jax.jit
    def both_ways(params):
        evaluation = Evaluation(at.problem, params, at.draw)
        particles = evaluation.algebra
        samples = [estimator.estimate(evaluation, term) for estimator in (RP, CF, CF_ALL, quell.ScoreFunction())]
        dense = [particles.dense(sample) for sample in samples]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), full) for full in dense]
        return (particles.gram(samples), [particles.pullback(s) for s in samples]), (dense_gram(dense), means)

    all_close(*both_ways(at.params), EXACT)


def _refreshed_gram(variate, at):
    evaluation = Evaluation(at.problem, at.params, at.draw)
    state = variate.update(evaluation, variate.init(evaluation.problem), None)
    return state, evaluation.algebra.gram([variate.sample(evaluation, state)])


def test_single_precision_is_near_double(key):
    problem = PROBLEMS["logistic, full-rank"]
    double = sampled_evaluation(problem, key)

    def single(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)

    arrays, rest = eqx.partition(problem, eqx.is_array)
    at = Evaluation(eqx.combine(single(arrays), rest), single(double.params), single(double.draw))
    for approximation in (anchored("low-rank"), quell.FittedQuadratic()):
        variate = quell.ControlVariate(quell.Data(), RP, CF_ALL, approximation=approximation)
        grams = []
        for evaluation in (double, at):
            state, gram = jax.jit(lambda e=evaluation, v=variate: _refreshed_gram(v, e))()
            grams.append(gram)
            kept = jax.tree.map(lambda now, before: now.dtype == before.dtype, state, variate.init(problem))
            assert all(jax.tree.leaves(kept))
        assert grams[1].dtype == jnp.float32
        np.testing.assert_allclose(grams[1], grams[0], **SINGLE)


def test_jit_equals_eager_and_does_not_compile_twice(key):
    problem = PROBLEMS["function, full-rank"]
    variates = [
        quell.ControlVariate(joint(), RP, CF_ALL, anchored(every=2)),
        quell.ControlVariate(joint(), RP, CF, quell.FittedQuadratic()),
    ]
    gradient = quell.Gradient(problem, variates, sampler=quell.Sampler(2, 2))
    params, traces = catalogue.some_params(problem.family), []

    @jax.jit
    def update(key, params, state):
        traces.append(1)
        return gradient.update(key, params, state)

    state = gradient.init(params)
    for step in range(2):
        state = update(jax.random.fold_in(key, step), params, state)[1]
    after = update(key, params, state)
    all_close(after, gradient.update(key, params, state), EXACT)
    assert len(traces) == 1
    assert bool(jnp.all(after[2].weights != 0))


def test_runs_that_are_vectorised_refresh_together_and_each_at_its_own_step(key):
    """A branch stays a branch, so that no refresh is paid at every step; what a run did not ask for is not kept."""
    problem, term = PROBLEMS["function, mean-field"], quell.Prior()
    params, approximation = catalogue.some_params(problem.family), anchored(every=3)
    draw = quell.Draw(jnp.ones((1, 2)), None)

    def update(params, state):
        return approximation.update(term, Evaluation(problem, params, draw), state, None)

    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1.0]), params)
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), approximation.init(problem))
    states = eqx.tree_at(lambda s: s.step, states, jnp.array([0, 1], jnp.int32))
    assert " cond[" in str(jax.make_jaxpr(jax.vmap(update))(many, states))
    after = jax.jit(jax.vmap(update))(many, states)
    assert after.is_set["prior"].tolist() == [True, False]
    np.testing.assert_allclose(after.quadratics["prior"].anchor, [params.loc, jnp.zeros(2)], **EXACT)


# Sums over rows, and the expansions made of them


def bumpy_model(num_data=11, dim=4):
    data = {"x": jnp.asarray(RNG.normal(size=(num_data, dim))), "group": jnp.arange(num_data) % 3}

    def log_likelihood(z, batch):
        return -jnp.cosh(batch["x"] @ z) + jnp.sin(z[batch["group"]] * z[3])

    return quell.Model(log_likelihood, lambda z: -jnp.sum(z**4) + z[0] * z[1], data, dim)


@pytest.mark.parametrize("at_once", [0, 1, 3, 4, 11, 100])
def test_chunks_of_any_length_give_the_same_sum(at_once):
    data = {"x": jnp.arange(22.0).reshape(11, 2), "n": jnp.arange(11)}

    def total(rows, counts):
        return jnp.sum(rows["x"] ** 2, axis=0, where=counts[:, None]), jnp.sum(rows["n"], where=counts)

    all_close(sum_over_rows(total, data, at_once=at_once), (jnp.sum(data["x"] ** 2, axis=0), jnp.asarray(55)), EXACT)


@pytest.mark.parametrize("rows_at_once", [1, 16, 1000])
def test_chunked_expansion_is_the_taylor_polynomial(rows_at_once):
    model, anchor = bumpy_model(), jnp.array([0.3, -0.2, 0.5, 0.1])
    problem = quell.Problem(model, quell.MeanField(4))

    def take(products):
        return DenseSketch().take(jax.random.key(0), products, jnp.ones(4))

    @jax.jit
    def found(z):
        anchor = LatentAnchor(z, jnp.zeros((1, 4)))
        data = expand_data(problem, anchor, take, rows_at_once=rows_at_once)
        prior = expand_prior(problem, anchor, take)
        return [(q.constant, q.slope, q.curvature.matrix) for q in (data, prior)]

    @jax.jit
    def truth(z):
        functions = (lambda z: jnp.sum(model.log_likelihood(z, model.data)), model.prior.log_prob)
        return [(f(z), jax.grad(f)(z), jax.hessian(f)(z)) for f in functions]

    all_close(found(anchor), truth(anchor), EXACT)


def symmetric(values):
    basis = np.linalg.qr(RNG.normal(size=(len(values), len(values))))[0]
    return jnp.asarray(basis * np.array(values) @ basis.T)


def as_matrix(curvature, dim):
    return curvature.matmul(jnp.eye(dim))


def test_a_sketch_of_sufficient_rank_is_the_matrix(key):
    scale = jnp.asarray(RNG.uniform(0.1, 2.0, size=6))
    matrix = symmetric([5.0, -3.0, 0.5, 0.0, 0.0, 0.0])
    for sketch in (DenseSketch(), LowRankSketch(3), LowRankSketch(50)):
        taken = jax.jit(lambda s=sketch: s.take(key, lambda columns: matrix @ columns, scale))()
        np.testing.assert_allclose(as_matrix(taken, 6), matrix, **EXACT)
        assert jax.tree.structure(taken) == jax.tree.structure(sketch.empty(6))
        assert jax.tree.map(jnp.shape, taken) == jax.tree.map(jnp.shape, sketch.empty(6))


def test_a_sketch_takes_the_diagonal_exactly_where_there_is_nothing_else(key):
    values, scale = jnp.array([3.0, -1.0, 0.2, 7.0]), jnp.array([0.1, 1.0, 5.0, 0.3])
    taken = DiagonalSketch().take(key, lambda columns: values[:, None] * columns, scale)
    np.testing.assert_allclose(taken.values, values, **EXACT)


def test_a_sum_of_curvatures_is_the_sum_of_the_matrices():
    pieces = (
        DiagonalCurvature(jnp.array([1.0, -2.0, 0.5])),
        FactoredCurvature(jnp.asarray(RNG.normal(size=(2, 3))), jnp.array([0.7, -0.3])),
        DenseCurvature(symmetric([1.0, 2.0, -1.0])),
    )
    total, matrix = SumCurvature(pieces), sum(as_matrix(piece, 3) for piece in pieces)
    covariance = symmetric([0.5, 1.0, 2.0])
    left, right = total.factors()
    np.testing.assert_allclose(as_matrix(total, 3), matrix, **EXACT)
    np.testing.assert_allclose(total.diagonal(), jnp.diagonal(matrix), **EXACT)
    np.testing.assert_allclose(left.T @ right, matrix, **EXACT)
    np.testing.assert_allclose(as_matrix(total.scale(-2.0), 3), -2.0 * matrix, **EXACT)
    trace = total.trace_with(jnp.diagonal(covariance), lambda rows: rows @ covariance)
    np.testing.assert_allclose(trace, jnp.trace(matrix @ covariance), **EXACT)


# The anchor and its refreshes


def test_a_refresh_happens_at_multiples_only_and_holds_all_data():
    problem = PROBLEMS["function, full-rank"]
    approximation = anchored(every=3)
    variate = quell.ControlVariate(joint(), RP, CF_ALL, approximation=approximation)
    draw = quell.Draw(jnp.ones((1, 2)), jnp.array([[1, 3]]))
    update = jax.jit(lambda params, state: variate.update(Evaluation(problem, params, draw), state, None))
    start = catalogue.some_params(problem.family)
    state, anchors = variate.init(problem), []
    for step in range(7):
        params = quell.LocationScale(start.loc + step, start.scale)
        state = update(params, state)
        anchors.append(float(state.quadratics["data"].anchor[0] - start.loc[0]))
    np.testing.assert_allclose(anchors, [0, 0, 0, 3, 3, 3, 6], **EXACT)
    assert int(state.step) == 7

    def log_joint(z):
        return jnp.sum(problem.model.log_likelihood(z, problem.model.data)) + problem.model.prior.log_prob(z)

    data, prior = state.quadratics["data"], state.quadratics["prior"]
    latents = start.loc + 6.0 + state.anchor.offsets
    slope, matrix = (jnp.mean(jax.vmap(of(log_joint))(latents), axis=0) for of in (jax.grad, jax.hessian))
    np.testing.assert_allclose(data.slope + prior.slope, slope, **EXACT)
    np.testing.assert_allclose(as_matrix(data.curvature, 2) + as_matrix(prior.curvature, 2), matrix, **EXACT)


def test_only_what_the_variate_uses_is_refreshed():
    state = catalogue.state(anchored(), PROBLEMS["function, full-rank"], quell.Prior())
    assert bool(state.is_set["prior"])
    assert not bool(state.is_set["data"])
    assert not bool(jnp.any(state.quadratics["data"].slope))


@pytest.mark.parametrize("approximation", [anchored(every=1), quell.FittedQuadratic()], ids=["anchored", "fitted"])
def test_a_step_that_is_not_finite_leaves_the_state_alone(approximation):
    model = quell.Model(lambda z, x: x * jnp.sqrt(z[0]), lambda z: -z @ z, jnp.array([0.5, 2.0]), 1)
    problem = quell.Problem(model, quell.MeanField(1))
    draw, term = quell.Draw(jnp.zeros((1, 1)), jnp.array([[0]])), quell.Data()

    def after(state, loc):
        params = quell.LocationScale(jnp.array([loc]), jnp.array([-2.0]))
        return approximation.update(term, Evaluation(problem, params, draw), state, None)

    good = after(approximation.init(problem), 1.0)
    bad = after(good, -1.0)
    quadratic = [state.quadratics["data"] if hasattr(state, "quadratics") else state for state in (good, bad)]
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(bad))
    assert bool(jnp.any(quadratic[0].slope != 0))
    point = jnp.array([0.7])
    np.testing.assert_allclose(*(q.grad(point) for q in quadratic), **EXACT)


def _shapes(jaxpr):
    """Shapes of all values inside a program, loops and branches included."""
    for equation in jaxpr.eqns:
        yield from (var.aval.shape for var in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from _shapes(inner)


@pytest.mark.parametrize("form", ["diagonal", "low-rank"])
@pytest.mark.parametrize("family", [quell.MeanField, lambda dim: quell.LowRank(dim, 2)], ids=["mean-field", "low-rank"])
def test_memory_is_bounded(form, family, key):
    """Neither rows times dim times products, nor dim times dim; a dense form has the latter."""
    dim, num_data, rows_at_once = 150, 1000, 64
    data = jnp.asarray(RNG.normal(size=(num_data, 2)))
    model = quell.Model(lambda z, x: jnp.tanh(x @ z.reshape(2, -1)).sum(axis=1), lambda z: -jnp.sum(z**4), data, dim)
    problem = quell.Problem(model, family(dim))
    params = problem.family.init()

    def largest(**options):
        approximation = quell.AnchoredQuadratic(rows_at_once=rows_at_once, rank=5, **options)
        fitted = quell.FittedQuadratic(curvature="diagonal")
        variates = [
            quell.ControlVariate(joint(), RP, CF_ALL, approximation),
            quell.ControlVariate(joint(), RP, CF, fitted),
        ]
        gradient = quell.Gradient(problem, variates, sampler=quell.Sampler(1, 10))
        jaxpr = jax.make_jaxpr(gradient.update)(key, params, gradient.init(params)).jaxpr
        return max((int(np.prod(shape)), shape) for shape in _shapes(jaxpr))

    assert largest(curvature=form)[0] < dim * dim
    assert largest(curvature="dense")[0] >= dim * dim


# What they are worth


@eqx.filter_jit
def share_left(gradient, params, state, key, num=200):
    """Variance of the base gradient less the variates over that of the base gradient."""
    sampler = quell.Sampler(num, gradient.sampler.batch_size)
    problem = gradient.problem
    draw = sampler.draw(key, problem.family, problem.model.num_data, jnp.float64)
    evaluation = Evaluation(problem, params, draw)
    base, *variates = gradient.samples(evaluation, state)
    both = [base, base - sum(variates[1:], variates[0])]
    before, after = jnp.diagonal(evaluation.algebra.gram(both) - evaluation.algebra.mean_gram(both))
    return after / before


def settled(gradient, params, num_steps, key):
    """The state after some steps at fixed parameters."""

    @eqx.filter_jit
    def run(gradient, state, keys):
        return jax.lax.scan(lambda s, k: (gradient.update(k, params, s)[1], None), state, keys)[0]

    return run(gradient, gradient.init(params), jax.random.split(key, num_steps))


def variates_of(approximation):
    right = CF_ALL if isinstance(approximation, quell.AnchoredQuadratic) else CF
    return [quell.ControlVariate(joint(), RP, right, approximation)]


def normal_mean():
    """Every datum has the same curvature, so that a quadratic over all data is exact on each minibatch."""
    data = jnp.asarray(RNG.normal(size=(7, 3)))
    return quell.Model(lambda z, x: -0.5 * jnp.sum((x - z) ** 2, axis=1), lambda z: -0.5 * z @ z, data, 3)


EXACT_FITS = {
    "anchored": (gaussian_model(), quell.MeanField(3), anchored(), None),
    "anchored, full-rank": (gaussian_model(), quell.FullRank(3), anchored("low-rank", rank=3), None),
    "anchored, on minibatches": (normal_mean(), quell.FullRank(3), anchored(), 2),
    "fitted": (gaussian_model(), quell.MeanField(3), quell.FittedQuadratic(), None),
    "fitted, full-rank": (gaussian_model(), quell.FullRank(3), quell.FittedQuadratic(), None),
}


@pytest.mark.parametrize(("model", "family", "approximation", "size"), EXACT_FITS.values(), ids=EXACT_FITS)
def test_a_conjugate_model_is_left_with_almost_no_variance(model, family, approximation, size, key):
    params = family.init(dtype=jnp.float64)
    params = quell.LocationScale(params.loc + jnp.array([0.3, -0.2, 0.5]), params.scale)
    sampler = quell.Sampler(1, size)
    gradient = quell.Gradient(quell.Problem(model, family), variates_of(approximation), sampler=sampler)
    state = settled(gradient, params, 200, key)
    assert float(share_left(gradient, params, state, jax.random.key(1))) < QUIET["exact"]


def test_the_fit_is_the_expected_gradient_and_the_expected_hessian(key):
    """Not those at the mean: the function is far from a quadratic over the width of q."""
    model = quell.Model(lambda z, x: -0.1 * jnp.sum((z - x) ** 4, axis=1), lambda z: 0.0 * z[0], jnp.zeros((1, 2)), 2)
    family = quell.FullRank(2, init_scale=1.0)
    problem, params = quell.Problem(model, family), catalogue.some_params(family)
    variates = [quell.ControlVariate(quell.Data(), RP, CF, quell.FittedQuadratic(rate=0.01))]
    gradient = quell.Gradient(problem, variates, sampler=quell.Sampler(20))
    fitted = settled(gradient, params, 1000, key).variates[0]

    def value(z):
        return model.log_likelihood(z, model.data)[0]

    draw, mass = exact_draw(problem, None)
    latents = family.algebra(params, draw.noise).latents("cholesky")
    hessian, slope = (jnp.tensordot(mass, jax.vmap(f(value))(latents), axes=1) for f in (jax.hessian, jax.grad))
    at_mean = jax.hessian(value)(family.mean(params))
    far = float(jnp.linalg.norm(hessian - at_mean))
    assert float(jnp.linalg.norm(as_matrix(fitted.curvature, 2) - hessian)) < QUIET["fit"] * far
    np.testing.assert_allclose(fitted.grad(family.mean(params)), slope, atol=QUIET["fit"] * far)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_learning_does_not_depend_on_the_scale_of_the_gradients(factor, key):
    base = gaussian_model()
    model = quell.Model(lambda z, b: factor * base.log_likelihood(z, b), lambda z: 0.0 * z[0], base.data, 3)
    problem = quell.Problem(model, quell.FullRank(3))
    params = problem.family.init(dtype=jnp.float64)
    gradient = quell.Gradient(problem, variates_of(quell.FittedQuadratic()))
    fitted = settled(gradient, params, 100, key).variates[0]
    exact = jax.hessian(lambda z: jnp.sum(base.log_likelihood(z, base.data)))(params.loc)
    found = as_matrix(fitted.curvature, 3) / factor
    assert float(jnp.linalg.norm(found - exact)) < QUIET["scale"] * float(jnp.linalg.norm(exact))


# Refusals and the default


def _looped(z, x):
    """A loop whose length depends on the latent has no reverse mode in JAX."""
    return x + jax.lax.while_loop(lambda s: s < 2.0, lambda s: 1.5 * s, z[0])


REFUSED = {
    "variational": (quell.Variational(), anchored(), "an anchored quadratic is one of the data or the prior term, and"),
    "score": (quell.Score(), quell.FittedQuadratic(), "the function of the score term is a constant"),
    "no derivative": (quell.Data(), anchored(), "the data term cannot be differentiated twice in its latent (ValueErr"),
    "taylor": (quell.Data(), quell.TaylorInLatent(), "the data term cannot be differentiated twice in its latent ("),
}


@pytest.mark.parametrize(("term", "approximation", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_are_explained(term, approximation, reason):
    problem = quell.Problem(quell.Model(_looped, quell.NormalPrior(), jnp.ones(3), 1), quell.MeanField(1))
    assert approximation.refuses(problem, term).startswith(reason)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: quell.AnchoredQuadratic(every=0),
            r"`every` was given as 0\. An integer of at least 1 was needed\. Write",
        ),
        (lambda: quell.AnchoredQuadratic(curvature="full"), r"The curvature 'full' is not known\. One of auto, dense"),
        (lambda: quell.FittedQuadratic(rate=-1.0), r"`rate` was given as -1\.0\. A positive, finite number was needed"),
        (
            lambda: quell.FittedQuadratic(curvature="low"),
            r"The curvature 'low' is not known\. One of auto, dense, diag",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_options_are_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _default(model, family, sampler=None):
    return [variate.name for variate in quell.default_variates(quell.Problem(model, family), sampler)]


def test_the_default_suits_model_and_sampler():
    """On all data the anchor does what Taylor does; a prior that is no quadratic gets one too."""
    landing, prior = "variational: rp - cf", "anchored(prior): rp - cf"
    data, taylor = "anchored(data): rp - cf[all]", "taylor-z(data): rp - cf"
    model, family = bumpy_model(), quell.MeanField(4)
    assert _default(model, family) == [landing, prior, data, taylor]
    assert _default(model, family, quell.Sampler(1)) == [landing, prior, data]
    assert _default(model, family, quell.Sampler(1, 11)) == [landing, prior, data]
    assert _default(model, family, quell.Sampler(1, 2)) == [landing, prior, data, taylor]
    linear = catalogue.MODELS["logistic"]
    assert "taylor-x(data): rp - rp[all]" in _default(linear, quell.MeanField(2))
    assert "taylor-x(data): rp - rp[all]" not in _default(linear, quell.MeanField(2), quell.Sampler(3))


def test_the_default_waits_longer_where_a_refresh_costs_more_and_gives_up_in_the_end():
    def wait(num_data):
        model = quell.Model(lambda z, x: -((x - z[0] - z[1]) ** 2), lambda z: -z @ z, jnp.ones(num_data), 2)
        variates = quell.default_variates(quell.Problem(model, quell.MeanField(2)), quell.Sampler(1, 10))
        return [v.approximation.every for v in variates if v.name.startswith("anchored(data)")]

    assert (wait(10), wait(1000), wait(100_000)) == ([20], [100], [])


def test_scores_have_a_baseline_where_there_is_another_replicate():
    model = quell.Model(lambda z, x: x * z[0], lambda z: 0.0 * z[0], jnp.ones(3), 1)
    names = {num: _default(model, quell.Bernoulli(1), quell.Sampler(num)) for num in (1, 2)}
    assert "leave-one-out(elbo): sf - cf" in names[2]
    assert "leave-one-out(elbo): sf - cf" not in names[1]
