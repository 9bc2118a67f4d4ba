# SPDX-License-Identifier: Apache-2.0
"""Discrete families, their relaxations and learned surrogates, by enumeration and by nodes."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from discrete import enumerated, evaluation_at, relaxed_nodes, uniform_grid

import quell
from exact import expectation
from quell import literature as zoo
from quell.evaluation import Evaluation
from quell.terms import elbo, joint
from tolerances import EXACT, EXPECTATION, NODES_IN_THREE

pytestmark = pytest.mark.slow

FAMILIES = {
    "bernoulli": quell.Bernoulli(2),
    "two categories": quell.Categorical(1, 2),
    "categorical": quell.Categorical(1, 3),
}
NODES = {2: 52, 3: 26}
CLOSE = {2: EXPECTATION, 3: NODES_IN_THREE}
PARAMS = {
    "two categories": quell.Logits(jnp.array([[0.3, -0.8]])),
    "bernoulli": quell.Logits(jnp.array([0.4, -1.1])),
    "categorical": quell.Logits(jnp.array([[0.3, -0.8, 0.9]])),
}


def _model(dim):
    centers = jnp.array([[0.6, 0.1, -0.3], [0.2, 0.9, 0.4], [-0.5, 0.3, 0.8]])[:, :dim]
    weights = jnp.array([0.3, -0.7, 1.1])[:dim]
    return quell.Model(
        lambda z, x: -jnp.sum((z - x) ** 2, axis=-1) + jnp.sin(x @ z),
        lambda z: -jnp.sum(weights * z) + 0.2 * jnp.prod(z + 0.5),
        centers,
        dim,
    )


def _problem(name):
    family = FAMILIES[name]
    return quell.Problem(_model(family.dim), family)


def all_close(left, right, tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


@pytest.mark.parametrize("name", FAMILIES)
def test_density_moments_and_entropy(name):
    family, params = FAMILIES[name], PARAMS[name]
    values = family.support()
    logs = jax.vmap(lambda z: family.log_prob(params, z))(values)
    mass = jnp.exp(logs)
    np.testing.assert_allclose(mass.sum(), 1.0, **EXACT)
    mean = mass @ values
    covariance = (values - mean).T @ (mass[:, None] * (values - mean))
    np.testing.assert_allclose(family.mean(params), mean, **EXACT)
    np.testing.assert_allclose(family.variance(params), jnp.diag(covariance), **EXACT)
    rows = jnp.arange(2.0 * family.dim).reshape(2, family.dim)
    np.testing.assert_allclose(family.covariance_product(params, rows), rows @ covariance, **EXACT)
    np.testing.assert_allclose(family.entropy(params), -mass @ logs, **EXACT)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_relaxation_given_the_sample_leads_back_to_the_sample(name, key):
    family, params = FAMILIES[name], PARAMS[name]
    noise = family.noise(key, 200, jnp.float64)
    samples, given = (family.algebra(params, noise).latents(how) for how in ("sample", "concrete(0.01)|sample"))
    assert len(np.unique(samples, axis=0)) == len(family.support())
    np.testing.assert_array_equal(jnp.round(given), samples)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_hidden_variable_is_a_mixture_of_its_parts(name):
    """The hidden variable has the same expectations whether it is drawn at once or given its sample."""
    family, params = FAMILIES[name], PARAMS[name]
    noise, mass = enumerated(family, params, num=NODES[family.dim])
    particles = family.algebra(params, noise)
    given = particles.latents("concrete(0.5)|sample")
    grid, weights = uniform_grid(family.dim, NODES[family.dim])
    at_once = family.algebra(params, jnp.concatenate([grid, grid], axis=1)).latents("concrete(0.5)")
    for function in (lambda z: z[:, 0], lambda z: z[:, 0] * z[:, 1], lambda z: jnp.cos(z).sum(1)):
        np.testing.assert_allclose(mass @ function(given), weights @ function(at_once), **CLOSE[family.dim])


TERMS = {
    "data": quell.Data(),
    "prior": quell.Prior(),
    "variational": quell.Variational(),
    "score": quell.Score(),
    "elbo": elbo(),
    "joint": joint(),
}


@pytest.mark.parametrize(("name", "size"), [("bernoulli", 1), ("bernoulli", None), ("categorical", 2)])
def test_estimators_of_discrete_terms_are_unbiased(name, size):
    problem, params = _problem(name), PARAMS[name]
    at, mass = evaluation_at(problem, params, *enumerated(problem.family, params), size)
    pairs = []
    approximations = (None, quell.TaylorInLatent(), quell.Baseline("moving-average"))
    for term, approximation in itertools.product(TERMS.values(), approximations):
        if approximation is not None:
            if quell.approximations.refuses_to_approximate(approximation, problem, term) is not None:
                continue
            state = approximation.init(problem)
            if state is not None:
                state = {"mean": jnp.array(-1.7), "mass": jnp.array(0.6)}
            term = quell.approximations.approximate(approximation, term, problem, state)
        for estimator in (quell.ScoreFunction(), quell.ScoreFunction(full_data=True), quell.ClosedForm()):
            if estimator.refuses(problem, term) is None:
                pairs.append((term, estimator))

    @jax.jit
    def both(params, draw):
        evaluation = Evaluation(problem, params, draw)
        means = [expectation(estimator.estimate(evaluation, term), evaluation, mass) for term, estimator in pairs]
        return means, [_discrete_truth(problem, term, params) for term, _ in pairs]

    means, truths = both(params, at.draw)
    all_close(means, truths, EXPECTATION)
    assert len(pairs) >= 25


def _discrete_truth(problem, term, params):
    """The gradient of the sum over all values, with the function held at the parameters."""
    values = problem.family.support()
    here = Evaluation(problem, params, quell.Draw(jnp.full((len(values), 2 * problem.family.dim), 0.5), None))
    here._latents = {"here": values}
    f = term.values(here, "here", full_data=True)
    return jax.grad(lambda w: jnp.exp(jax.vmap(lambda z: problem.family.log_prob(w, z))(values)) @ f)(params)


def _network(dim, seed):
    return eqx.nn.MLP(dim, "scalar", 4, 1, activation=jnp.tanh, key=jax.random.key(seed), dtype=jnp.float64)


@pytest.mark.parametrize(
    ("name", "how"), [(name, how) for name in FAMILIES for how in ("concrete", "surrogate 0", "surrogate 1")][:-1]
)
def test_estimators_of_relaxed_terms_agree(name, how):
    """Score function, reparameterization and conditional score function have one and the same mean."""
    problem, params = _problem(name), PARAMS[name]
    approximation = quell.Concrete(0.5)
    if how != "concrete":
        approximation = quell.Surrogate(_network(problem.family.dim, int(how[-1])), relaxation=approximation)
    term = quell.approximations.approximate(approximation, elbo(), problem, approximation.init(problem))
    num = NODES[problem.family.dim]
    relaxed, mass = evaluation_at(problem, params, *relaxed_nodes(problem.family, params, num=num), None)
    given, given_mass = evaluation_at(problem, params, *enumerated(problem.family, params, num=num), None)
    tolerance = CLOSE[problem.family.dim]
    truth = expectation(quell.Reparameterization().estimate(relaxed, term), relaxed, mass)
    score = expectation(quell.ScoreFunction().estimate(relaxed, term), relaxed, mass)
    conditional = expectation(quell.ConditionalScoreFunction().estimate(given, term), given, given_mass)
    all_close(score, truth, tolerance)
    all_close(conditional, truth, tolerance)
    with pytest.raises(AssertionError):
        all_close(jax.tree.map(lambda leaf: leaf * (1 + 1e-4), conditional), truth, tolerance)


def test_a_relaxation_stays_finite_where_uniform_numbers_round_to_one():
    family, params = quell.Bernoulli(2), quell.Logits(jnp.zeros(2, jnp.float32))
    noise = jnp.array([[0.6, 0.4, 1 - 2.0**-24, 2.0**-24]], jnp.float32)
    particles = family.algebra(params, noise)
    given = quell.families.relaxed_name(0.5, given_sample=True)
    assert np.isfinite(particles.latents(given)).all()
    path = quell.parts.FactoredGradient(paths={given: jnp.ones((1, 2), jnp.float32)})
    assert np.isfinite(particles.dense(path).logits).all()


def test_a_sum_within_a_sum_is_approximated_part_by_part():
    problem, params = _problem("bernoulli"), PARAMS["bernoulli"]
    nested = quell.terms.Total((joint(), quell.Variational()), (1, -1), "nested")
    evaluation = Evaluation(problem, params, quell.Draw(enumerated(problem.family, params)[0], None))
    flat, deep = (
        quell.ControlVariate(t, quell.ScoreFunction(), quell.ClosedForm(), approximation=quell.TaylorInLatent())
        for t in (elbo(), nested)
    )
    assert deep.refuses(problem) is None
    dense = [evaluation.algebra.dense(variate.sample(evaluation, None)) for variate in (flat, deep)]
    all_close(*dense, EXACT)


def test_a_learner_learns_beside_a_variate_that_is_not_finite():
    """The neighbour is dropped; its NaN must not reach the network."""
    problem = _problem("bernoulli")
    broken = quell.ControlVariate(
        quell.Data(),
        quell.ScoreFunction(),
        quell.ClosedForm(),
        approximation=quell.TaylorInLatent(anchor=jnp.full(2, 1e200)),
        label="broken",
    )
    base = quell.default_base(problem)
    sampler = quell.Sampler(num_replicates=8)
    gradient = quell.Gradient(problem, [zoo.relax(_network(2, 0)), broken], base=base, sampler=sampler)
    state = gradient.init(PARAMS["bernoulli"])
    step = eqx.filter_jit(gradient.update)
    before = jax.tree.leaves(state.variates[0].network)
    for key in jax.random.split(jax.random.key(0), 3):
        _, state, info = step(key, PARAMS["bernoulli"], state)
    assert info.dropped.tolist() == [False, True]
    after = jax.tree.leaves(state.variates[0].network)
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert any(np.any(one != two) for one, two in zip(before, after, strict=True))


def test_leave_one_out_has_mean_zero():
    """Two replicates: all pairs of values."""
    problem, params = _problem("bernoulli"), PARAMS["bernoulli"]
    noise, mass = enumerated(problem.family, params)
    variate = zoo.leave_one_out()
    total = 0.0
    for (one, p), (two, q) in itertools.product(zip(noise, mass, strict=True), repeat=2):
        evaluation = Evaluation(problem, params, quell.Draw(jnp.stack([one, two]), None))
        total = total + p * q * evaluation.algebra.pullback(variate.sample(evaluation, None)).logits
    np.testing.assert_allclose(total, 0.0, atol=1e-12)


def _toy():
    """Three Bernoullis with f = Σ (z − p)²."""
    targets = jnp.array([0.6, 0.51, 0.48])
    model = quell.Model(lambda z, x: jnp.sum((z - x) ** 2, axis=-1), lambda z: 0.0 * z[0], targets[None], 3)
    return quell.Problem(model, quell.Bernoulli(3))


def _settled_variance(problem, variates, *, steps=300, seed=0):
    """Mean squared norm of the combined gradient at fixed parameters, after the weights have settled."""
    base = quell.default_base(problem)
    gradient = quell.Gradient(problem, variates, base=base, sampler=quell.Sampler(num_replicates=20))
    params = problem.family.init(dtype=jnp.float64)

    @eqx.filter_jit
    def run(gradient, params, keys):
        def step(state, key):
            grad, state, _ = gradient.update(key, params, state)
            return state, grad.logits.ravel()

        return jax.lax.scan(step, gradient.init(params), keys)[1]

    grads = run(gradient, params, jax.random.split(jax.random.key(seed), steps))[steps // 3 :]
    return float(jnp.sum(jnp.var(grads, axis=0)))


def test_rebar_and_relax_are_quieter_than_the_score_function():
    problem = _toy()
    plain = _settled_variance(problem, ())
    relax = zoo.relax(_network(3, 0), optimizer=optax.adam(0.02))
    for variates in ([zoo.rebar()], [relax], [zoo.rebar(), relax, zoo.ranganath(), zoo.leave_one_out()]):
        assert _settled_variance(problem, variates) < 0.7 * plain, variates


def test_a_large_offset_is_removed_by_the_learned_weights():
    """One categorical with p = (0.95, 0.01, ...) and f = 2.4 Σ i z_i + 100."""
    places = jnp.arange(1.0, 7.0)
    model = quell.Model(lambda z, x: 2.4 * (x @ z) + 100.0, lambda z: 0.0 * z[0], places[None], 6)
    problem = quell.Problem(model, quell.Categorical(1, 6))
    p = jnp.array([[0.95, 0.01, 0.01, 0.01, 0.01, 0.01]])

    def variance(variates):
        gradient = quell.Gradient(
            problem, variates, base=quell.default_base(problem), sampler=quell.Sampler(num_replicates=20)
        )
        params = quell.Logits(jnp.log(p))

        def step(state, key):
            grad, state, _ = gradient.update(key, params, state)
            return state, grad.logits.ravel()

        grads = jax.jit(lambda keys: jax.lax.scan(step, gradient.init(params), keys)[1])(
            jax.random.split(jax.random.key(1), 400)
        )[100:]
        return float(jnp.sum(jnp.var(grads, axis=0)))

    assert variance([zoo.ranganath()]) < variance(()) / 100


ERRORS = {
    "path through a discrete family": lambda: quell.Gradient(_problem("bernoulli")),
    "temperature": lambda: quell.Concrete(0.0),
    "network": lambda: quell.Gradient(
        _problem("bernoulli"), [zoo.relax(_network(5, 0))], base=quell.default_base(_problem("bernoulli"))
    ),
    "two numbers": lambda: quell.Gradient(
        _problem("bernoulli"), [zoo.relax(lambda z: z)], base=quell.default_base(_problem("bernoulli"))
    ),
    "relaxation of a Gaussian": lambda: quell.Gradient(quell.Problem(_model(2), quell.MeanField(2)), [zoo.rebar()]),
    "conditioning on nothing": lambda: quell.Gradient(
        _problem("bernoulli"),
        [quell.ControlVariate(quell.Data(), quell.ConditionalScoreFunction(), quell.ScoreFunction())],
        base=quell.default_base(_problem("bernoulli")),
    ),
    "closed form": lambda: quell.Gradient(
        _problem("bernoulli"),
        [quell.ControlVariate(quell.Data(), quell.ScoreFunction(), quell.ClosedForm())],
        base=quell.default_base(_problem("bernoulli")),
    ),
    "baseline": lambda: quell.Baseline("leave-two-out"),
    "decay": lambda: quell.Baseline("moving-average", decay=0.0),
    "temperature in words": lambda: quell.Concrete("0.5"),
    "signs": lambda: quell.terms.Total((quell.Data(), quell.Prior()), (1, 2), "twice"),
    "one category": lambda: quell.Categorical(2, 1),
    "no blocks": lambda: quell.Product({}),
}
SAYS = {
    "path through a discrete family": "Bernoulli has no differentiable transport",
    "temperature": r"`temperature` was given as 0\.0\. A positive",
    "network": "does not take a latent of length 2",
    "two numbers": r"gives shape \(2,\) for a latent of length 2 instead of one number",
    "relaxation of a Gaussian": "MeanField is not a discrete family",
    "conditioning on nothing": "the data term is not relaxed",
    "closed form": "the log-likelihood is neither a quadratic in the latent nor one of a linear predictor",
    "baseline": "The baseline 'leave-two-out' is not known",
    "decay": r"`decay` was given as 0\.0\. A number above 0",
    "temperature in words": "`temperature` was given as 0.5. A positive, finite number",
    "signs": r"`signs` was given as \(1, 2\) for 2 terms",
    "one category": "`num_categories` was given as 1",
    "no blocks": "Families by name were needed",
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("what", ERRORS)
def test_what_cannot_be_is_refused_with_the_reason(what):
    with pytest.raises(ValueError, match=SAYS[what]):
        ERRORS[what]()


def test_a_fit_of_discrete_latents_finds_the_posterior():
    """One switch that all data agree on."""
    model = quell.Model(lambda z, x: -0.5 * (x - z[0]) ** 2, lambda z: 0.0 * z[0], jnp.array([0.9, 1.2, 0.8, 1.1]), 1)
    result = quell.fit(
        model, quell.Bernoulli(1), steps=300, key=jax.random.key(0), sampler=quell.Sampler(num_replicates=10)
    )
    log_odds = sum(-0.5 * (x - 1.0) ** 2 + 0.5 * x**2 for x in (0.9, 1.2, 0.8, 1.1))
    np.testing.assert_allclose(result.params.logits[0], log_odds, atol=0.1)
    assert set(np.unique(result.sample(jax.random.key(1), 50))) == {0.0, 1.0}
