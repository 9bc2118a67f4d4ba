# SPDX-License-Identifier: Apache-2.0
"""Taylor expansions, the logistic bound, baselines, relaxations and networks: their formulas and what they are worth.

That estimators of approximated terms are unbiased is in `test_laws`; quadratics that are kept between steps are in
`test_quadratics`.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import catalogue
import quell
from catalogue import FAMILIES, MODELS, at_random, network
from exact import all_close
from quell import literature
from quell.evaluation import Batch
from quell.models.likelihood import bound_rate, lower_bound
from quell.terms import elbo, joint
from tolerances import EXACT, SINGLE

RP, RP_ALL = quell.Reparameterization(), quell.Reparameterization(full_data=True)
SF, CF = quell.ScoreFunction(), quell.ClosedForm()
TAYLOR_X, BOUND = quell.TaylorInData(), quell.JaakkolaJordan()
DATA = quell.Data()
FEATURES = MODELS["gaussian"].data.features


def everything(model):
    return Batch(model.data, is_full=True)


# The bound


def test_the_bound_lies_below_the_likelihood_and_touches_it():
    touch = jnp.array([0.0, 1e-9, 0.5, 3.0, 10.0])
    t = jnp.tile(jnp.linspace(-12.0, 12.0, 97)[:, None], 5)
    gap = jax.jit(lambda t, touch: jax.nn.log_sigmoid(t) - lower_bound(t, touch))
    above = np.asarray(gap(t, jnp.broadcast_to(touch, t.shape)))
    assert (above > -EXACT["atol"]).all()
    assert (above.max(axis=0) > 0.01).all()
    for sign in (1.0, -1.0):
        np.testing.assert_allclose(gap(sign * touch, touch), np.zeros(5), **EXACT)


def test_the_rate_of_the_bound_is_smooth_at_zero():
    rate, slope = jax.jit(lambda x: jax.jvp(bound_rate, (x,), (jnp.ones_like(x),)))(jnp.array([0.0, 1e-12, 1e-3]))
    np.testing.assert_allclose(rate, [0.125, 0.125, 0.125 - 1e-6 / 96], **EXACT)
    assert bool(jnp.all(jnp.isfinite(slope)))
    assert jax.eval_shape(bound_rate, jnp.zeros(1, jnp.float32)).dtype == jnp.float32


def test_the_bound_is_the_highest_for_the_current_parameters():
    evaluation = at_random("logistic", "full-rank", 1, None)
    model, family, params = evaluation.problem.model, evaluation.problem.family, evaluation.params
    points = jnp.array([[0.3, -0.2], [2.0, 1.0], [-4.0, 3.0]])

    @jax.jit
    def found():
        rows = model.data.features
        mean, variance = rows @ family.mean(params), family.predictor_variance(params, rows)
        touch = jnp.sqrt(mean**2 + variance)

        def expected(touch):
            return jnp.sum(lower_bound(mean, touch) - bound_rate(touch) * variance)

        quadratic = BOUND.apply(DATA, None).quadratic(evaluation, everything(model))
        return {
            "slope": jax.grad(expected)(touch),
            "expected": [expected(factor * touch) for factor in (1.0, 0.8, 1.2)],
            "in closed form": family.expected_quadratic(params, quadratic),
            "values": jax.vmap(quadratic.value)(points),
            "bounds": jax.vmap(lambda z: jnp.sum(lower_bound(rows @ z, touch)))(points),
            "likelihoods": jax.vmap(lambda z: jnp.sum(model.log_likelihood(z, model.data)))(points),
        }

    at = found()
    np.testing.assert_allclose(at["slope"], jnp.zeros(5), **EXACT)
    assert at["expected"][0] > max(at["expected"][1:])
    np.testing.assert_allclose(at["in closed form"], at["expected"][0], **EXACT)
    np.testing.assert_allclose(at["values"], at["bounds"], **EXACT)
    assert bool(jnp.all(at["bounds"] < at["likelihoods"]))


# Taylor in the latent


def test_a_fixed_anchor_at_the_mean_is_the_mean():
    evaluation = at_random("function", "full-rank", 2, None)
    follows, fixed = (quell.TaylorInLatent(at).apply(DATA, at) for at in (None, evaluation.params.loc))
    all_close(*jax.jit(lambda: [CF.estimate(evaluation, term) for term in (fixed, follows)])(), EXACT)
    assert (fixed.name, follows.name) == ("taylor-z[anchor](data)", "taylor-z(data)")


def test_the_expansion_has_the_derivatives_of_the_likelihood_at_its_anchor():
    evaluation, anchor = at_random("poisson", "mean-field", 1, None), jnp.array([0.6, -0.5])
    model, term = evaluation.problem.model, quell.TaylorInLatent(anchor).apply(DATA, anchor)

    def likelihood(z):
        return jnp.sum(model.log_likelihood(z, model.data))

    @jax.jit
    def both(z):
        quadratic = term.quadratic(evaluation, everything(model))
        found = quadratic.value(z), quadratic.grad(z), quadratic.curvature.matmul(jnp.eye(2))
        return found, (likelihood(z), jax.grad(likelihood)(z), jax.hessian(likelihood)(z))

    all_close(*both(anchor), EXACT)


def test_a_sum_within_a_sum_is_approximated_part_by_part():
    evaluation = at_random("waves in two", "bernoulli", 4, None)
    nested = quell.terms.Total((joint(), quell.Variational()), (1, -1), "nested")
    flat, deep = (quell.ControlVariate(term, SF, CF, quell.TaylorInLatent()) for term in (elbo(), nested))
    assert deep.refuses(evaluation.problem) is None
    all_close(*(evaluation.algebra.dense(variate.sample(evaluation, None)) for variate in (flat, deep)), EXACT)


# Taylor in the data


def _float_labels():
    """Logistic regression whose label is a datum of its own, not folded into the features."""

    def log_density(t, y):
        return jax.nn.log_sigmoid(y * t)

    data = quell.models.linear_data.LinearData(FEATURES, jnp.array([1.0, -1.0, 1.0, 1.0, -1.0]))
    return quell.LinearPredictor(data, quell.NormalPrior(), log_density)


@pytest.mark.parametrize("linear", [MODELS["logistic"], MODELS["poisson"], _float_labels()], ids=repr)
def test_a_linear_predictor_as_a_function_has_its_expansion(linear):
    function = quell.Model(linear.log_likelihood, linear.prior, linear.data, 2)
    expansions = [model.data_expansion() for model in (function, linear)]

    @jax.jit
    def both(z):
        return [(each.log_likelihood(z, linear.data), each.mean_log_likelihood(z)) for each in expansions]

    for z in jnp.array([[0.7, -0.4], [-1.2, 2.0]]):
        all_close(*both(z), EXACT)


def image_model(num_data, dtype=jnp.float64):
    """A datum of seven numbers in two arrays, one of them a matrix, and no structure at all."""
    rng = np.random.default_rng(11)
    data = {"image": rng.normal(size=(num_data, 2, 3)), "target": rng.normal(size=num_data)}
    data = jax.tree.map(lambda x: jnp.asarray(x, dtype), data)

    def log_likelihood(z, batch):
        hidden = jnp.tanh(jnp.einsum("bij,i->bj", batch["image"], z["a"]))
        return -jnp.cosh(batch["target"] - jnp.sum(hidden, axis=1) * z["b"])

    return quell.Model(log_likelihood, quell.NormalPrior(), data, {"a": jnp.zeros(2), "b": jnp.zeros(())})


@pytest.mark.parametrize("num_data", [4, 9])
def test_expansion_of_a_function_is_the_taylor_polynomial_and_its_average(num_data):
    """Both with fewer data than numbers in a datum and with more."""
    model, z = image_model(num_data), jnp.array([0.5, -0.8, 1.1])
    expansion = model.data_expansion()
    assert {leaf.shape[0] for leaf in jax.tree.leaves(expansion.factor)} == {min(num_data, 7)}
    center, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.mean(x, axis=0, keepdims=True), model.data))

    @jax.jit
    def both(z):
        def of_one(flat):
            return model.log_likelihood(z, unravel(flat))[0]

        steps = jax.vmap(lambda datum: ravel_pytree(datum)[0])(model.data) - center
        curved = 0.5 * jnp.sum((steps @ jax.hessian(of_one)(center)) * steps, axis=1)
        values = of_one(center) + steps @ jax.grad(of_one)(center) + curved
        found = expansion.log_likelihood(z, model.data), expansion.mean_log_likelihood(z)
        return found, (values, jnp.mean(values))

    all_close(*both(z), EXACT)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_low_precision_is_expanded_in_single(dtype):
    model, z = image_model(9, dtype), jnp.array([0.5, -0.8, 1.1], jnp.float32)
    expansion = model.data_expansion()
    mean, values = jax.jit(lambda z: (expansion.mean_log_likelihood(z), expansion.log_likelihood(z, model.data)))(z)
    assert mean.dtype == values.dtype == jnp.float32
    np.testing.assert_allclose(mean, jnp.mean(values), **SINGLE)


class _Network(eqx.Module):
    """A likelihood that holds arrays of its own."""

    weight: jax.Array
    offset: float = 0.5

    def __call__(self, z, batch):
        return -((batch @ self.weight - z[0] - self.offset * z[1]) ** 2)


def test_the_state_of_an_expansion_holds_arrays_only(key):
    model = quell.Model(_Network(jnp.array([1.0, -2.0])), quell.NormalPrior(), FEATURES, 2)
    variate = quell.ControlVariate(DATA, RP, RP_ALL, approximation=TAYLOR_X)
    gradient = quell.Gradient(quell.Problem(model, quell.MeanField(2)), [variate], sampler=quell.Sampler(2, 1))
    params = gradient.problem.family.init()
    state = gradient.init(params)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    _, after, info = eqx.filter_jit(gradient.update)(key, params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert not bool(info.dropped[0])


# Relaxations, networks and baselines: what they are worth


def variance_after(problem, variates, params, *, steps=300):
    """Of the combined gradient at fixed parameters, after a third of the steps has taught the weights."""
    sampler = quell.Sampler(num_replicates=20)
    gradient = quell.Gradient(problem, variates, base=quell.default_base(problem), sampler=sampler)

    @eqx.filter_jit
    def run(gradient, params, keys):
        def step(state, key):
            grad, state, _ = gradient.update(key, params, state)
            return state, grad.logits.ravel()

        return jax.lax.scan(step, gradient.init(params), keys)[1]

    grads = run(gradient, params, jax.random.split(jax.random.key(0), steps))[steps // 3 :]
    return float(jnp.sum(jnp.var(grads, axis=0)))


@pytest.mark.slow
def test_rebar_and_relax_have_lower_variance_than_the_score_function():
    """Three Bernoullis with f = Σ (z - p)²."""
    targets = jnp.array([0.6, 0.51, 0.48])
    model = quell.Model(lambda z, x: jnp.sum((z - x) ** 2, axis=-1), lambda z: 0.0 * z[0], targets[None], 3)
    problem, params = quell.Problem(model, quell.Bernoulli(3)), quell.Logits(jnp.zeros(3))
    plain = variance_after(problem, (), params)
    rebar, relax = literature.rebar(), literature.relax(network(3), optimizer=optax.adam(0.02))
    for variates in ([rebar], [relax], [rebar, relax, literature.ranganath(), literature.leave_one_out()]):
        assert variance_after(problem, variates, params) < 0.7 * plain, variates


def test_a_large_offset_is_removed_by_the_learned_weights():
    """One categorical with p = (0.95, 0.01, ...) and f = 2.4 Σ i z_i + 100."""
    places = jnp.arange(1.0, 7.0)
    model = quell.Model(lambda z, x: 2.4 * (x @ z) + 100.0, lambda z: 0.0 * z[0], places[None], 6)
    problem = quell.Problem(model, quell.Categorical(1, 6))
    params = quell.Logits(jnp.log(jnp.array([[0.95, 0.01, 0.01, 0.01, 0.01, 0.01]])))
    before, after = (variance_after(problem, variates, params) for variates in ((), [literature.ranganath()]))
    assert after < before / 100


def test_a_learner_learns_beside_a_variate_that_is_not_finite():
    """The neighbour is dropped; its NaN must not reach the network."""
    problem, params = catalogue.problem("waves in two", "bernoulli"), FAMILIES["bernoulli"].params
    far = quell.TaylorInLatent(anchor=jnp.full(2, 1e200))
    broken = quell.ControlVariate(DATA, SF, CF, approximation=far, label="broken")
    variates, base = [literature.relax(network(2)), broken], quell.default_base(problem)
    gradient = quell.Gradient(problem, variates, base=base, sampler=quell.Sampler(num_replicates=8))
    state, step = gradient.init(params), eqx.filter_jit(gradient.update)
    before = jax.tree.leaves(state.variates[0].network)
    for key in jax.random.split(jax.random.key(0), 3):
        _, state, info = step(key, params, state)
    assert info.dropped.tolist() == [False, True]
    after = jax.tree.leaves(state.variates[0].network)
    assert all(np.isfinite(leaf).all() for leaf in after)
    assert any(np.any(one != two) for one, two in zip(before, after, strict=True))


# Refusals


def _looped(z, x):
    """A loop over the data has no reverse mode in JAX."""
    return x @ z + jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))[1][:, 0]


def _function(log_likelihood, data):
    return quell.Problem(quell.Model(log_likelihood, quell.NormalPrior(), data, 2), quell.MeanField(2))


LOGISTIC, FUNCTION = catalogue.problem("logistic", "full-rank"), catalogue.problem("function", "mean-field")
DISCRETE = catalogue.problem("waves in two", "bernoulli")
COUNTS = _function(lambda z, b: b["x"] @ z * b["y"], {"x": FEATURES, "y": jnp.arange(5)})
EMPTY = _function(lambda z, x: jnp.sum(x, axis=1) + z[0], jnp.zeros((5, 0)))
NETWORK = "the network"
REFUSED = {
    "anchor of another length": (LOGISTIC, DATA, quell.TaylorInLatent([1.0, 2.0, 3.0]), "the anchor has 3 coordinates"),
    "integers": (COUNTS, DATA, TAYLOR_X, r"Model offers no expansion in its data: they hold int\d+"),
    "empty": (EMPTY, DATA, TAYLOR_X, "Model offers no expansion in its data: a datum is empty"),
    "loop": (_function(_looped, FEATURES), DATA, TAYLOR_X, r"cannot be differentiated twice in its data \(ValueError"),
    "no data": (LOGISTIC, quell.Prior(), TAYLOR_X, "the prior term has no data to expand in"),
    "Poisson": (catalogue.problem("poisson", "mean-field"), DATA, BOUND, r"bound of .* LinearPredictor\(poisson"),
    "function": (FUNCTION, DATA, BOUND, r"no quadratic bound of the likelihood of Model\(num_data=5, dim=2\)"),
    "bound of the prior": (LOGISTIC, quell.Prior(), BOUND, "the bound is one of the data term"),
    "relaxed Gaussian": (FUNCTION, elbo(), quell.Concrete(), "MeanField has no continuous relaxation"),
    "network of five": (DISCRETE, elbo(), quell.Surrogate(network(5)), f"{NETWORK} does not take a latent of length 2"),
    "network to two": (DISCRETE, elbo(), quell.Surrogate(lambda z: z), rf"{NETWORK} gives shape \(2,\)"),
    "constant": (DISCRETE, quell.Score(), quell.Baseline(), "its function is a constant already"),
}


@pytest.mark.parametrize(("problem", "term", "approximation", "reason"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_why(problem, term, approximation, reason):
    with pytest.raises(ValueError, match=rf"cannot be used for .*{reason}"):
        quell.Gradient(problem, [quell.ControlVariate(term, RP, SF, approximation)], base=quell.default_base(problem))
