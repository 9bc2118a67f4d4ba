# SPDX-License-Identifier: Apache-2.0
"""The laws, over the whole catalogue, by exact expectation."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from exact import all_close, enumeration, exact_draw, expectation, expectations, relaxed_enumeration, true_gradients
from quell.approximations import approximate
from quell.evaluation import Evaluation
from quell.families import Capability
from quell.families.algebra import dense_gram, dense_leaf_grams
from quell.terms import elbo
from tolerances import EXACT, EXPECTATION, NODES_IN_THREE, SINGLE

CASES = {name: catalogue.Case(name) for name in catalogue.CASES}


CORE = (
    "logistic, mean-field, minibatch of 2",
    "logistic, full-rank raw, minibatch of 1",
    "poisson, low-rank, minibatch of 2",
    "function, full-rank, minibatch of 2",
    "function, sampling and density, minibatch of 2",
    "rates, gamma, minibatch of 2",
    "waves in two, bernoulli, minibatch of 1",
    "waves in three, mixed blocks, all data",
    "function, flow, minibatch of 2",
)
"""One case for each way in which a family's expectations and inner products are taken."""

FEW = (CORE[6],)
"""Those of the most expensive law."""

SOME = (CORE[0], CORE[3], CORE[6])
"""One with a factored gradient, one of a black box, one that is discrete."""


def some_first(names, some=SOME, core=CORE):
    """Some cases always, the others of the core as long tests, and the rest before a release."""
    later = {name: pytest.mark.slow if name in core else pytest.mark.release for name in names if name not in some}
    return [pytest.param(name, marks=later[name]) if name in later else name for name in names]


def check_unbiased(case, pairs):
    """One compiled program for all means, one for all truths."""
    problem, entry = case.problem, case.entry
    draw, mass = exact_draw(entry.noise, problem.model.num_data, case.batch_size)
    terms = {name: term for name, term, _ in pairs}

    @jax.jit
    def means(params):
        evaluation = Evaluation(problem, params, draw)
        gradients = [estimator.estimate(evaluation, term) for _, term, estimator in pairs]
        return expectations(gradients, evaluation, mass)

    truth = jax.jit(lambda params: true_gradients(problem, terms, params, entry.latent))(entry.params)
    for (name, _, estimator), mean in zip(pairs, means(entry.params), strict=True):
        try:
            all_close(mean, truth[name], EXPECTATION)
        except AssertionError as error:
            raise AssertionError(f"{estimator.name} of {name} is biased: {error}") from None


@pytest.mark.parametrize("name", some_first(CASES))
def test_estimators_are_unbiased(name):
    """Every estimator of every term: any difference of two has mean zero."""
    pairs = CASES[name].plain_pairs()
    assert len(pairs) >= 9
    check_unbiased(CASES[name], pairs)


@pytest.mark.parametrize("name", some_first(CORE, FEW, ()))
def test_estimators_of_approximated_terms_are_unbiased(name):
    """The basic ones; `test_every_estimator_of_every_approximated_term_is_unbiased` has all."""
    check_unbiased(CASES[name], CASES[name].approximated_pairs())


@pytest.mark.release
@pytest.mark.parametrize("name", CASES)
def test_every_estimator_of_every_approximated_term_is_unbiased(name):
    check_unbiased(CASES[name], CASES[name].pairs(everything=True))


def test_the_catalogue_covers_every_class():
    """Each public estimator, approximation and family has an entry or a listed exception."""
    for package, entries in (
        (quell.estimators, catalogue.ESTIMATORS.values()),
        (quell.approximations, [*catalogue.approximations(2).values(), quell.Concrete()]),
        (quell.families, [entry.family for entry in catalogue.FAMILIES.values()]),
    ):
        base = (quell.estimators.AbstractEstimator, quell.approximations.AbstractApproximation, quell.AbstractFamily)
        classes = {c for c in vars(package).values() if isinstance(c, type) and issubclass(c, base)}
        final = {c for c in classes if not c.__name__.startswith("Abstract")}
        assert final <= {type(entry) for entry in entries}, package
    used = {(estimator.name) for case in CASES.values() for _, _, estimator in case.plain_pairs()}
    assert set(catalogue.ESTIMATORS) - used == {"csf"}, "each estimator is used somewhere; relaxed terms use this one"


@pytest.mark.parametrize("name", ["logistic, full-rank, all data", "rates, gamma, minibatch of 2"])
def test_a_planted_bias_is_caught(name):
    """The same law fails where an estimator is off by a part in ten thousand."""

    class Biased(quell.Reparameterization):
        def estimate(self, evaluation, term):
            return super().estimate(evaluation, term) * (1.0 + 1e-4)

    with pytest.raises(AssertionError, match="rp of data is biased"):
        check_unbiased(CASES[name], [("data", quell.Data(), Biased())])


@pytest.mark.parametrize("name", some_first(CASES))
def test_variates_have_mean_zero(name):
    """Those of the paper and of the literature, and the defaults, after two steps; leave-one-out has its own law."""
    case = CASES[name]
    problem, entry = case.problem, case.entry
    draw, mass = exact_draw(entry.noise, problem.model.num_data, case.batch_size)
    relaxed = ("rebar", "rebar-plain", "relax")
    found = [v for k, v in catalogue.variates(problem).items() if "leave-one-out" not in k and k not in relaxed]
    assert found

    @jax.jit
    def means(params):
        evaluation = Evaluation(problem, params, draw)
        states = [case.refreshed(variate.learns, variate.update, variate.init(problem)) for variate in found]
        samples = [variate.sample(evaluation, state) for variate, state in zip(found, states, strict=True)]
        return expectations(samples, evaluation, mass)

    for mean in means(entry.params):
        all_close(mean, jax.tree.map(jnp.zeros_like, mean), EXPECTATION)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("name", some_first(CASES))
def test_the_default_base_gradient_is_unbiased(name, replace):
    case = CASES[name]
    problem, entry = case.problem, case.entry
    draw, mass = exact_draw(entry.noise, problem.model.num_data, case.batch_size, replace=replace)

    @jax.jit
    def both(params):
        evaluation = Evaluation(problem, params, draw)
        mean = expectation(quell.default_base(problem).sample(evaluation), evaluation, mass)
        return mean, true_gradients(problem, {"elbo": elbo()}, params, entry.latent)["elbo"]

    all_close(*both(entry.params), EXPECTATION)


RELAXED = [
    *(("bernoulli", how) for how in ("concrete", "network")),
    *(("two categories", how) for how in ("concrete", "network")),
    ("categorical", "concrete"),
]


@pytest.mark.parametrize(("family", "how"), RELAXED)
def test_estimators_of_relaxed_terms_agree(family, how):
    """Score function, reparameterization and conditional score function have one and the same mean."""
    entry = catalogue.FAMILIES[family]
    name, num, tolerance = {
        "bernoulli": ("waves in two", 52, EXPECTATION),
        "two categories": ("waves in two", 52, EXPECTATION),
        "categorical": ("waves in three", 26, NODES_IN_THREE),
    }[family]
    problem = quell.Problem(catalogue.MODELS[name], entry.family)
    approximation = quell.Concrete(0.5)
    if how == "network":
        approximation = quell.Surrogate(catalogue.network(problem.family.dim), relaxation=approximation)
    term = approximate(approximation, elbo(), problem, approximation.init(problem))

    @functools.partial(jax.jit, static_argnums=0)
    def mean(estimator, nodes, mass):
        evaluation = Evaluation(problem, entry.params, quell.Draw(nodes, None))
        return expectation(estimator.estimate(evaluation, term), evaluation, mass)

    relaxed = [jnp.asarray(part) for part in relaxed_enumeration(entry.family, entry.params, num)]
    given = [jnp.asarray(part) for part in enumeration(entry.family, entry.params, num)]
    truth = mean(quell.Reparameterization(), *relaxed)
    all_close(mean(quell.ScoreFunction(), *relaxed), truth, tolerance)
    conditional = mean(quell.ConditionalScoreFunction(), *given)
    all_close(conditional, truth, tolerance)
    with pytest.raises(AssertionError):
        all_close(jax.tree.map(lambda leaf: leaf * (1 + 1e-4), conditional), truth, tolerance)


def test_leave_one_out_has_mean_zero():
    """Two replicates: all pairs of values."""
    case = CASES["waves in two, bernoulli, minibatch of 1"]
    problem, entry = case.problem, case.entry
    variate, total = quell.literature.leave_one_out(), 0.0
    for (one, p), (two, q) in itertools.product(zip(*entry.noise, strict=True), repeat=2):
        evaluation = Evaluation(problem, entry.params, quell.Draw(jnp.stack([one, two]), None))
        total = total + p * q * evaluation.algebra.pullback(variate.sample(evaluation, None)).logits
    np.testing.assert_allclose(total, 0.0, atol=EXACT["atol"])


# Families


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_density_entropy_and_moments_agree_with_quadrature(name):
    """Of the density by integrals over the latent, and of the samples by integrals over the noise."""
    family, params, noise, latent = catalogue.FAMILIES[name]
    logs = jax.jit(jax.vmap(lambda z: family.log_prob(params, z)))(jnp.asarray(latent.nodes))
    mass = latent.weights * np.exp(logs)
    np.testing.assert_allclose(mass.sum(), 1.0, **EXPECTATION)
    latents = jax.jit(lambda rows: family.algebra(params, rows).latents(family.sampling))(jnp.asarray(noise.nodes))
    moments = [_moments(np.asarray(latent.nodes), mass), _moments(np.asarray(latents), noise.weights)]
    all_close(*moments, EXPECTATION)
    if family.refuses(Capability.ENTROPY) is None:
        np.testing.assert_allclose(family.entropy(params), -mass @ logs, **EXPECTATION)
    if family.refuses(Capability.MOMENTS) is None:
        mean, covariance = moments[0]
        np.testing.assert_allclose(family.mean(params), mean, **EXPECTATION)
        np.testing.assert_allclose(family.variance(params), np.diagonal(covariance), **EXPECTATION)
        rows = jnp.arange(2.0 * family.dim).reshape(2, family.dim)
        np.testing.assert_allclose(family.covariance_product(params, rows), rows @ covariance, **EXPECTATION)
        spread = np.sum((rows @ covariance) * rows, axis=1)
        np.testing.assert_allclose(family.predictor_variance(params, rows), spread, **EXPECTATION)


def _moments(nodes, weights):
    mean = weights @ nodes
    return mean, (nodes - mean).T @ (weights[:, None] * (nodes - mean))


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_every_transport_has_the_distribution(name, key):
    family, params, noise, _ = catalogue.FAMILIES[name]
    algebra = family.algebra(params, jnp.asarray(noise.nodes))
    for transport in family.transports:
        mean, covariance = _moments(np.asarray(algebra.latents(transport)), noise.weights)
        expected = _moments(np.asarray(algebra.latents(family.sampling)), noise.weights)
        all_close((mean, covariance), expected, EXPECTATION)
    rows = family.noise(key, 3, jnp.float64)
    one_by_one = jnp.stack([family.sample(params, row) for row in rows])
    np.testing.assert_allclose(family.algebra(params, rows).latents(family.sampling), one_by_one, **EXACT)


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_a_capability_that_is_missing_is_refused_in_words(name):
    family, params, *_ = catalogue.FAMILIES[name]
    asked = {
        Capability.ENTROPY: lambda: family.entropy(params),
        Capability.MOMENTS: lambda: (family.mean(params), family.variance(params)),
        Capability.GEOMETRY: lambda: family.geometry,
    }
    for capability, ask in asked.items():
        if capability in family.capabilities:
            ask()
        else:
            assert family.refuses(capability) == f"{type(family).__name__} has no {capability.value}"
            with pytest.raises(NotImplementedError, match=capability.value):
                ask()


@pytest.mark.parametrize("name", catalogue.FAMILIES)
def test_parameters_are_counted_by_leaf(name):
    """As many as move the density: what lies above the diagonal of a triangular matrix is no parameter."""
    family, params, _, latent = catalogue.FAMILIES[name]
    typical = jnp.asarray(latent.nodes[len(latent.nodes) // 3])
    moves = jax.tree.leaves(jax.tree.map(jnp.count_nonzero, jax.grad(family.log_prob)(params, typical)))
    assert family.num_leaf_params == tuple(int(number) for number in moves)
    assert family.num_params == sum(family.num_leaf_params)


@pytest.mark.parametrize(
    "name", [n for n, e in catalogue.FAMILIES.items() if not e.family.refuses(Capability.GEOMETRY)]
)
def test_the_geometry_is_that_of_the_fisher_matrix(name):
    """By integrals of products of scores; a geometry that damps its solve has a smaller norm."""
    family, params, _, latent = catalogue.FAMILIES[name]
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    keep = np.asarray(
        jax.flatten_util.ravel_pytree(jax.grad(lambda w: family.log_prob(w, jnp.ones(2)))(params))[0] != 0
    )
    score = jax.vmap(jax.grad(lambda w, z: family.log_prob(unravel(w), z)), (None, 0))(flat, jnp.asarray(latent.nodes))
    density = np.exp(jax.vmap(lambda z: family.log_prob(params, z))(jnp.asarray(latent.nodes)))
    fisher = (np.asarray(score).T * (latent.weights * density)) @ np.asarray(score)
    grad = np.where(keep, np.cos(np.arange(flat.size)), 0.0)
    geometry = family.geometry
    direction = geometry.direction(params, unravel(jnp.asarray(grad)))
    found = float(geometry.sq_norm(params, direction))
    exact = grad[keep] @ np.linalg.pinv(fisher[np.ix_(keep, keep)], rcond=1e-10) @ grad[keep]
    if name == "low-rank":
        assert 0 < found < exact
    else:
        np.testing.assert_allclose(found, exact, **EXPECTATION)


# Factored gradients


def sampled(name):
    """A problem, its parameters, and a draw of three replicates."""
    case = CASES[name]
    problem = case.problem
    draw = quell.Sampler(3, 2).draw(jax.random.key(3), problem.family, problem.model.num_data, jnp.float64)
    return problem, case.entry.params, draw


@functools.cache
def one_of_each_form(name):
    """Of all gradients that estimators make, one for each set of parts: what the algebra does depends on those only."""
    problem, params, draw = sampled(name)
    # Of approximated terms only closed forms of these have parts that those of plain terms lack.
    pairs = [*CASES[name].plain_pairs(), *CASES[name].approximated_pairs("taylor in latent", "anchored, low-rank")]

    def estimates(params):
        at = Evaluation(problem, params, draw)
        return [estimator.estimate(at, term) for _, term, estimator in pairs]

    forms = {}
    for pair, gradient in zip(pairs, jax.eval_shape(estimates, params), strict=True):
        forms.setdefault((jax.tree.structure(gradient), *(leaf.shape for leaf in jax.tree.leaves(gradient))), pair)
    return list(forms.values())


@pytest.mark.parametrize("name", some_first(CASES))
def test_factored_equals_dense(name):
    """Pull-backs, inner products, those by leaf and those of averages."""
    problem, params, draw = sampled(name)
    pairs = one_of_each_form(name)
    assert len(pairs) >= 3

    @jax.jit
    def both_ways(params):
        at = Evaluation(problem, params, draw)
        gradients = [estimator.estimate(at, term) for _, term, estimator in pairs]
        dense = [at.algebra.dense(gradient) for gradient in gradients]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), full) for full in dense]
        alone = [jax.tree.map(lambda leaf: leaf[None], mean) for mean in means]
        return (
            [at.algebra.pullback(gradient) for gradient in gradients],
            at.algebra.gram(gradients),
            at.algebra.leaf_grams(gradients),
            at.algebra.mean_gram(gradients),
            at.algebra.mean_leaf_grams(gradients),
        ), (means, dense_gram(dense), dense_leaf_grams(dense), dense_gram(alone), dense_leaf_grams(alone))

    all_close(*both_ways(params), EXACT)


@pytest.mark.parametrize("name", some_first([name for name in CASES if "minibatch" in name], core=()))
def test_a_shared_minibatch_is_the_same_minibatch_for_each_replicate(name):
    problem, params, draw = sampled(name)
    pairs = one_of_each_form(name)

    @jax.jit
    def dense(params):
        index = draw.index[0]
        found = []
        for rows in (index, jnp.tile(index, (len(draw.noise), 1))):
            at = Evaluation(problem, params, quell.Draw(draw.noise, rows))
            found.append([at.algebra.dense(estimator.estimate(at, term)) for _, term, estimator in pairs])
        return found

    all_close(*dense(params), EXACT)


@pytest.mark.parametrize("name", ["mean-field", "mean-field raw", "full-rank", "full-rank raw"])
@pytest.mark.slow
def test_whitened_inner_products_are_those_of_the_geometry(name):
    """The natural metric of factored gradients is the one that natural-gradient steps take."""
    case = next(case for case in CASES.values() if catalogue.CASES[case.name][1] == name)
    problem, params, draw = sampled(case.name)
    pairs = one_of_each_form(case.name)
    assert Capability.NATURAL_METRIC in problem.family.capabilities

    @jax.jit
    def both(params):
        at = Evaluation(problem, params, draw)
        gradients = [estimator.estimate(at, term) for _, term, estimator in pairs]
        algebra, white = at.algebra.whitened(gradients)
        geometry = problem.family.geometry

        def gram(trees):
            """By differences of squared norms, since directions are in coordinates of the geometry's own."""
            each = [jax.vmap(lambda grad: geometry.direction(params, grad))(tree) for tree in trees]
            directions = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
            norm = jax.vmap(lambda direction: geometry.sq_norm(params, direction))
            together = jax.vmap(lambda one: jax.vmap(lambda two: norm(jax.tree.map(jnp.add, one, two)))(directions))
            apart = jax.vmap(lambda one: jax.vmap(lambda two: norm(jax.tree.map(jnp.subtract, one, two)))(directions))
            return jnp.mean(together(directions) - apart(directions), axis=-1) / 4.0

        dense = [at.algebra.dense(gradient) for gradient in gradients]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0, keepdims=True), full) for full in dense]
        found = algebra.gram(white), algebra.mean_gram(white)
        by_leaf = [jnp.sum(grams, axis=0) for grams in (algebra.leaf_grams(white), algebra.mean_leaf_grams(white))]
        return (found, by_leaf), ((gram(dense), gram(means)), list(found))

    all_close(*both(params), EXACT)


# Programs

STEPS = [
    "logistic, mean-field, minibatch of 2",
    "logistic, full-rank raw, minibatch of 1",
    "poisson, low-rank, minibatch of 2",
    "function, sampling and density, minibatch of 2",
    "rates, gamma, minibatch of 2",
    "chances, beta, minibatch of 2",
    "waves in two, bernoulli, minibatch of 1",
    "waves in three, categorical, minibatch of 2",
    "waves in three, mixed blocks, all data",
    "waves in three, blocks, minibatch of 2",
]
"""Every kind of family once."""

RULES = (
    quell.Rule(metric="natural"),
    quell.Rule(by_leaf=True, every=2),
    *(quell.Rule(), quell.Rule(by_leaf=True), quell.Rule(every=2), quell.Rule(by_leaf=True)),
    *(quell.Rule(every=2), quell.Rule(), quell.Rule(every=3, by_leaf=True), quell.Rule()),
)
"""How each of them learns its weights."""


@functools.cache
def step(name):
    """A gradient with the default variates, and its compiled update with a count of traces."""
    problem = CASES[name].problem
    sampler = quell.Sampler(4, 2)
    variates = quell.default_variates(problem, sampler)
    base, rule = quell.default_base(problem), RULES[STEPS.index(name)]
    gradient = quell.Gradient(problem, variates, base=base, sampler=sampler, rule=rule)
    traces = []

    @jax.jit
    def update(key, params, state):
        traces.append(1)
        return gradient.update(key, params, state)

    return gradient, update, traces


@pytest.mark.parametrize("name", some_first(STEPS, core=()))
def test_a_step_does_not_compile_twice_and_keeps_the_shapes_of_its_state(name, key):
    gradient, update, traces = step(name)
    params = CASES[name].entry.params
    state = gradient.init(params)
    for number in range(2):
        compiled = update(jax.random.fold_in(key, number), params, state)
        assert jax.tree.structure(compiled[1]) == jax.tree.structure(state)
        shapes = [[(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(one)] for one in (compiled[1], state)]
        assert shapes[0] == shapes[1]
        state = compiled[1]
    assert len(traces) == 1


@pytest.mark.parametrize("name", some_first(STEPS, SOME[::2], ()))
def test_jit_equals_eager(name):
    """The base gradient and one variate; each is traced through the same code."""
    gradient = step(name)[0]
    problem, params, draw = sampled(name)
    state = gradient.variates[0].init(problem)

    def run(params):
        evaluation = Evaluation(problem, params, draw)
        found = [gradient.base.sample(evaluation), gradient.variates[0].sample(evaluation, state)]
        return [evaluation.algebra.pullback(one) for one in found], evaluation.algebra.gram(found)

    all_close(jax.jit(run)(params), run(params), EXACT)


@pytest.mark.parametrize("name", some_first(STEPS, core=()))
def test_vmap_equals_loop(name, key):
    """Several runs side by side, at different steps, do what each does alone."""
    gradient, update, _ = step(name)
    params, keys = CASES[name].entry.params, jax.random.split(key, 2)
    first = gradient.init(params)
    states = [first, update(key, params, first)[1]]
    alone = [update(one, params, state) for one, state in zip(keys, states, strict=True)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    together = jax.jit(jax.vmap(gradient.update, (0, None, 0)))(keys, params, stacked)
    all_close(together, jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone), EXACT)


@pytest.mark.parametrize("name", some_first(STEPS, core=()))
def test_float32_is_near_float64(name, key):
    gradient = step(name)[0]
    params = CASES[name].entry.params
    state = gradient.init(params)
    draw = gradient.sampler.draw(key, gradient.problem.family, gradient.problem.model.num_data, jnp.float64)

    def single(tree):
        return jax.tree.map(lambda x: x.astype(jnp.float32) if _is_float(x) else x, tree)

    def norms(gradient, draw, params, state):
        evaluation = Evaluation(gradient.problem, params, draw)
        samples = gradient.samples(evaluation, state)
        return [evaluation.algebra.pullback(sample) for sample in samples]

    double = jax.jit(functools.partial(norms, gradient))(draw, params, state)
    found = jax.jit(functools.partial(norms, single(gradient)))(single(draw), single(params), single(state))
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    all_close(found, double, SINGLE)


def _is_float(x) -> bool:
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)


@pytest.mark.parametrize("name", some_first([name for name in STEPS if "mixed" not in name], core=()))
def test_exact_weights_never_increase_the_exact_variance(name):
    gradient = step(name)[0]
    case, entry = CASES[name], CASES[name].entry
    draw, mass = exact_draw(entry.noise, case.problem.model.num_data, case.batch_size)
    state = gradient.init(entry.params)

    @jax.jit
    def joint(params):
        evaluation = Evaluation(case.problem, params, draw)
        dense = [evaluation.algebra.dense(sample) for sample in gradient.samples(evaluation, state)]
        flat = [[leaf.reshape(len(mass), -1) for leaf in jax.tree.leaves(tree)] for tree in dense]
        vectors = jnp.stack([jnp.concatenate(leaves, axis=1) for leaves in flat])
        return jnp.einsum("knd,lnd,n->kl", vectors, vectors, mass)

    average = quell.combine.Moments.from_joint(joint(entry.params))
    sizes = []
    for count in range(len(gradient.variates) + 1):
        some = quell.combine.Moments(average.gram[:count, :count], average.cross[:count], average.base)
        prior = quell.NormalWishart(jnp.zeros((count, count)), jnp.zeros(count))
        weights = quell.combine.solve(prior, some, jnp.asarray(1.0)) if count else jnp.zeros(0)
        sizes.append(float(quell.combine.expected_sq_norm(some, weights)))
    slack = EXACT["rtol"] * sizes[0]  # of rounding, where nothing of the variance is left
    assert all(after <= before + slack for before, after in itertools.pairwise(sizes))
    assert sizes[-1] < sizes[0]


def test_every_recipe_has_a_name_of_its_own_and_one_line():
    for name in STEPS:
        found = catalogue.variates(CASES[name].problem)
        for variate in found.values():
            assert "\n" not in repr(variate)
            assert variate.formula in repr(variate)
