# SPDX-License-Identifier: Apache-2.0
"""Fixed anchors, Taylor in the data of any model, the logistic bound, local reparameterization."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import catalogue
import quell
from exact import expectation
from quell.approximations import JaakkolaJordan
from quell.approximations.bound import bound_rate, lower_bound
from quell.estimators import LocalReparameterization
from quell.evaluation import Batch, Evaluation
from quell.families.base import dense_gram
from quell.models.linear import LinearData
from test_laws import all_close, exact_evaluation, sampled_evaluation, true_gradient
from tolerances import EXACT, EXPECTATION, SINGLE

PROBLEMS = catalogue.problems()
ANCHOR = [0.6, -0.5]
ANCHORED, TAYLOR_X, BOUND = APPROXIMATIONS = (quell.TaylorInLatent(ANCHOR), quell.TaylorInData(), JaakkolaJordan())
RP, RP_ALL = quell.Reparameterization(), quell.Reparameterization(full_data=True)
CF, CF_ALL = quell.ClosedForm(), quell.ClosedForm(full_data=True)
LR, LR_ALL = LocalReparameterization(), LocalReparameterization(full_data=True)
RNG = np.random.default_rng(11)


def applied(approximation, problem, term):
    return approximation.apply(term, approximation.init(problem))


def new_pairs(problem):
    """Every estimator that is new, or of a term that is."""
    data, prior = quell.Data(), quell.Prior()
    pairs = [(data, LR), (data, LR_ALL)]
    if prior.refuses_closed_form(problem) is not None:
        pairs.append((applied(ANCHORED, problem, prior), CF))
    for approximation in APPROXIMATIONS:
        if approximation.refuses(problem, data) is None:
            term = applied(approximation, problem, data)
            pairs += [(term, estimator) for estimator in (RP, RP_ALL, quell.ScoreFunction(), CF, CF_ALL)]
    return [(term, estimator) for term, estimator in pairs if estimator.refuses(problem, term) is None]


# Laws


CASES = [
    ("logistic, mean-field", 1, 15),
    ("logistic, full-rank raw", 2, 15),
    ("poisson, full-rank", None, 10),
    ("function, mean-field raw", 1, 9),
    ("function, full-rank", 2, 9),
]


@pytest.mark.parametrize(("name", "batch", "number"), CASES)
def test_estimators_are_unbiased(name, batch, number):
    problem = PROBLEMS[name]
    at, mass = exact_evaluation(problem, batch)
    pairs = new_pairs(problem)
    assert len(pairs) == number

    @eqx.filter_jit
    def both(pairs, problem, params, draw):
        evaluation = Evaluation(problem, params, draw)
        found = [expectation(estimator.estimate(evaluation, term), evaluation, mass) for term, estimator in pairs]
        return found, {term.name: true_gradient(problem, term, params) for term, _ in pairs}

    expectations, truths = both(pairs, problem, at.params, at.draw)
    for (term, _), found in zip(pairs, expectations, strict=True):
        all_close(found, truths[term.name], EXPECTATION)


PLANTED = {
    "anchor": ("logistic, mean-field", ANCHORED, CF),
    "bound": ("logistic, mean-field", BOUND, CF),
    "local": ("logistic, mean-field", None, LR),
    "data": ("function, mean-field", TAYLOR_X, RP_ALL),
}


@pytest.mark.parametrize(("name", "approximation", "right"), PLANTED.values(), ids=PLANTED)
def test_a_planted_error_is_caught(name, approximation, right):
    problem = PROBLEMS[name]
    evaluation, mass = exact_evaluation(problem, 1)
    term = quell.Data() if approximation is None else applied(approximation, problem, quell.Data())

    @jax.jit
    def mean(error):
        difference = RP.estimate(evaluation, term) - right.estimate(evaluation, term) * (1.0 + error)
        return expectation(difference, evaluation, mass)

    zeros = jax.tree.map(jnp.zeros_like, evaluation.params)
    all_close(mean(0.0), zeros, EXPECTATION)
    with pytest.raises(AssertionError):
        all_close(mean(1e-4), zeros, EXPECTATION)


def test_factored_equals_dense(key):
    at = sampled_evaluation(PROBLEMS["logistic, full-rank"], key)
    pairs = [pair for pair in new_pairs(at.problem) if pair[1] in (LR, LR_ALL, CF)]

    @jax.jit
    def both_ways(params):
        evaluation = Evaluation(at.problem, params, at.draw)
        particles = evaluation.algebra
        samples = [estimator.estimate(evaluation, term) for term, estimator in pairs]
        dense = [particles.dense(sample) for sample in samples]
        means = [jax.tree.map(lambda leaf: leaf.mean(axis=0), full) for full in dense]
        return (particles.gram(samples), [particles.pullback(s) for s in samples]), (dense_gram(dense), means)

    all_close(*both_ways(at.params), EXACT)


# Local reparameterization


def by_hand(problem, params, z, data):
    """Differentiate the log-likelihood of predictors whose standardised noise, read off the latent, is held."""
    rows = data.features

    def moments(w):
        variance = jnp.sum(problem.family.covariance_product(w, rows) * rows, axis=1)
        return rows @ problem.family.mean(w), jnp.sqrt(variance)

    mean, scale = moments(params)
    noise = (rows @ z - mean) / scale

    def total(w):
        mean, scale = moments(w)
        values = jax.vmap(problem.model.log_density)(mean + scale * noise, data.targets)
        return jnp.sum(values) * problem.model.num_data / data.targets.shape[0]

    return jax.grad(total)(params)


INDICES = (jnp.array([[0, 3], [4, 1], [2, 4]]), jnp.array([0, 2, 3]), None)


@pytest.mark.parametrize("name", ["poisson, mean-field", "logistic, full-rank"])
def test_local_reparameterization_is_the_gradient_with_its_noise_held(name, key):
    """For minibatches of their own, one for all replicates, and all data."""
    problem = PROBLEMS[name]
    data, noise = problem.model.data, jax.random.normal(key, (3, 2))

    @jax.jit
    def both(params):
        pairs = []
        for index in INDICES:
            evaluation = Evaluation(problem, params, quell.Draw(noise, index))
            rows = data if index is None else jax.tree.map(lambda x, i=index: x[i], data)
            axis = 0 if index is not None and index.ndim == 2 else None
            truth = jax.vmap(lambda z, batch: by_hand(problem, params, z, batch), (0, axis))
            latents = evaluation.latents(problem.family.sampling)
            pairs.append((evaluation.algebra.dense(LR.estimate(evaluation, quell.Data())), truth(latents, rows)))
        return pairs, evaluation.algebra.dense(LR_ALL.estimate(evaluation, quell.Data()))

    pairs, on_all_data = both(catalogue.some_params(problem.family))
    for found, truth in [*pairs, (on_all_data, pairs[-1][1])]:
        all_close(found, truth, EXACT)


@pytest.mark.parametrize("name", ["logistic, mean-field", "logistic, full-rank"])
def test_local_reparameterization_is_quieter(name):
    """With one datum a replicate it is a conditional expectation, so the rest is uncorrelated with it."""
    evaluation, mass = exact_evaluation(PROBLEMS[name], 1)

    @jax.jit
    def variances(mass):
        samples = [evaluation.algebra.dense(e.estimate(evaluation, quell.Data())) for e in (RP, LR)]
        plain, local = (jax.vmap(lambda tree: ravel_pytree(tree)[0])(sample) for sample in samples)
        mean = mass @ plain
        products = ((plain - mean) ** 2, (local - mean) ** 2, (plain - local) * local)
        return [mass @ jnp.sum(product, axis=1) for product in products]

    before, after, covariance = variances(mass)
    assert after < 0.95 * before
    np.testing.assert_allclose(covariance, 0.0, **EXPECTATION)


def test_a_row_of_zeros_has_no_noise_and_no_gradient(key):
    model = quell.logistic_regression([[0.0, 0.0], [1.0, -0.5]], [1, 0])
    problem = quell.Problem(model, quell.MeanField(2))
    draw = quell.Draw(jax.random.normal(key, (2, 2)), jnp.array([[0], [1]]))
    evaluation = Evaluation(problem, catalogue.some_params(problem.family), draw)
    dense = jax.jit(lambda: evaluation.algebra.dense(LR.estimate(evaluation, quell.Data())))()
    assert all(bool(jnp.all(leaf[0] == 0) & jnp.all(leaf[1] != 0)) for leaf in dense)


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


def test_the_rate_is_smooth_at_zero():
    rate, slope = jax.jit(lambda x: jax.jvp(bound_rate, (x,), (jnp.ones_like(x),)))(jnp.array([0.0, 1e-12, 1e-3]))
    np.testing.assert_allclose(rate, [0.125, 0.125, 0.125 - 1e-6 / 96], **EXACT)
    assert bool(jnp.all(jnp.isfinite(slope)))
    assert jax.eval_shape(bound_rate, jnp.zeros(1, jnp.float32)).dtype == jnp.float32


def test_the_bound_is_the_highest_for_the_current_parameters():
    problem = PROBLEMS["logistic, full-rank"]
    family, params, rows = problem.family, catalogue.some_params(problem.family), problem.model.data.features
    evaluation = Evaluation(problem, params, quell.Draw(jnp.zeros((1, 2)), None))
    everything = Batch(problem.model.data, is_full=True)
    points = jnp.array([[0.3, -0.2], [2.0, 1.0], [-4.0, 3.0]])

    @jax.jit
    def found():
        mean, variance = rows @ family.mean(params), jnp.sum(family.covariance_product(params, rows) * rows, axis=1)
        touch = jnp.sqrt(mean**2 + variance)

        def expected(touch):
            return jnp.sum(lower_bound(mean, touch) - bound_rate(touch) * variance)

        quadratic = applied(BOUND, problem, quell.Data()).quadratic(evaluation, everything)
        return {
            "slope": jax.grad(expected)(touch),
            "expected": [expected(factor * touch) for factor in (1.0, 0.8, 1.2)],
            "in closed form": family.expected_quadratic(params, quadratic),
            "values": jax.vmap(quadratic.value)(points),
            "bounds": jax.vmap(lambda z: jnp.sum(lower_bound(rows @ z, touch)))(points),
            "likelihoods": jax.vmap(lambda z: jnp.sum(problem.model.log_likelihood(z, problem.model.data)))(points),
        }

    at = found()
    np.testing.assert_allclose(at["slope"], jnp.zeros(5), **EXACT)
    assert at["expected"][0] > max(at["expected"][1:])
    np.testing.assert_allclose(at["in closed form"], at["expected"][0], **EXACT)
    np.testing.assert_allclose(at["values"], at["bounds"], **EXACT)
    assert bool(jnp.all(at["bounds"] < at["likelihoods"]))


# Anchors


def test_a_fixed_anchor_at_the_mean_is_the_mean():
    problem = PROBLEMS["function, full-rank"]
    params = catalogue.some_params(problem.family)
    evaluation = Evaluation(problem, params, quell.Draw(jnp.ones((2, 2)), None))
    follows = applied(quell.TaylorInLatent(), problem, quell.Data())
    fixed = applied(quell.TaylorInLatent(params.loc), problem, quell.Data())
    all_close(*jax.jit(lambda: [CF.estimate(evaluation, term) for term in (fixed, follows)])(), EXACT)
    assert (fixed.name, follows.name) == ("taylor-z[anchor](data)", "taylor-z(data)")


def test_a_fixed_anchor_matches_the_likelihood_there():
    problem, anchor = PROBLEMS["poisson, mean-field"], jnp.array(ANCHOR)
    evaluation = Evaluation(problem, catalogue.some_params(problem.family), quell.Draw(jnp.ones((1, 2)), None))
    everything = Batch(problem.model.data, is_full=True)

    def likelihood(z):
        return jnp.sum(problem.model.log_likelihood(z, problem.model.data))

    @jax.jit
    def both(z):
        quadratic = applied(ANCHORED, problem, quell.Data()).quadratic(evaluation, everything)
        found = quadratic.value(z), quadratic.grad(z), quadratic.curvature.matmul(jnp.eye(2))
        return found, (likelihood(z), jax.grad(likelihood)(z), jax.hessian(likelihood)(z))

    all_close(*both(anchor), EXACT)


# Taylor in the data of a function


def assert_expansions_agree(function_model, expansion, rows):
    found = function_model.data_expansion()

    @jax.jit
    def both(z):
        pairs = ((found, function_model.data), (expansion, rows))
        return [(each.log_likelihood(z, batch), each.mean_log_likelihood(z)) for each, batch in pairs]

    for z in jnp.array([[0.7, -0.4], [-1.2, 2.0]]):
        all_close(*both(z), EXACT)


LABELS = jnp.array([1.0, -1.0, 1.0, 1.0, -1.0])
FEATURES = catalogue.MODELS["gaussian"].data.features


def test_logistic_regression_as_a_function_with_float_labels_has_the_expansion_of_a_linear_predictor():
    def log_density(t, y):
        return jax.nn.log_sigmoid(y * t)

    linear = quell.LinearPredictor(LinearData(FEATURES, LABELS), quell.NormalPrior(), log_density)
    data = {"x": FEATURES, "y": LABELS}
    function = quell.Model(lambda z, b: log_density(b["x"] @ z, b["y"]), quell.NormalPrior(), data, 2)
    assert_expansions_agree(function, linear.data_expansion(), linear.data)


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_a_linear_predictor_as_a_function_has_its_expansion(name):
    linear = catalogue.MODELS[name]
    function = quell.Model(linear.log_likelihood, linear.prior, linear.data, 2)
    assert_expansions_agree(function, linear.data_expansion(), linear.data)


def image_model(num_data, dtype=jnp.float64):
    """A datum of seven numbers in two arrays, one of them a matrix, and no structure at all."""
    data = {"image": RNG.normal(size=(num_data, 2, 3)), "target": RNG.normal(size=num_data)}
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
    variate = quell.ControlVariate(quell.Data(), RP, RP_ALL, approximation=TAYLOR_X)
    gradient = quell.Gradient(quell.Problem(model, quell.MeanField(2)), [variate], sampler=quell.Sampler(2, 1))
    params = gradient.problem.family.init()
    state = gradient.init(params)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    _, after, info = eqx.filter_jit(gradient.update)(key, params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert not bool(info.dropped[0])


# Refusals


@jax.custom_vjp
def _kernel(x):
    """A function with a gradient of its own, as fast kernels have it; it has no forward mode in JAX."""
    return x**3


_kernel.defvjp(lambda x: (x**3, x), lambda x, g: (3 * g * x**2,))


def _function_problem(log_likelihood, data):
    return quell.Problem(quell.Model(log_likelihood, quell.NormalPrior(), data, 2), quell.MeanField(2))


def _looped(z, x):
    """A loop over the data has no reverse mode in JAX."""
    return x @ z + jax.lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, 0.5 * s[1]), (0, x))[1][:, 0]


LOGISTIC, FUNCTION = PROBLEMS["logistic, full-rank"], PROBLEMS["function, mean-field"]
COUNTS = _function_problem(lambda z, b: b["x"] @ z * b["y"], {"x": FEATURES, "y": jnp.arange(5)})
REFUSED = {
    "anchor of another length": (
        LOGISTIC,
        quell.ControlVariate(quell.Data(), RP, CF, approximation=quell.TaylorInLatent([1.0, 2.0, 3.0])),
        r"cannot be used: the anchor has 3 coordinates and the latent has 2\. Leave it out",
    ),
    "expansion in integers": (
        COUNTS,
        quell.ControlVariate(quell.Data(), RP, RP_ALL, approximation=TAYLOR_X),
        r"Model offers no expansion in its data: they hold int\d+, and derivatives need floating point\.",
    ),
    "empty data": (
        _function_problem(lambda z, x: jnp.sum(x, axis=1) + z[0], jnp.zeros((5, 0))),
        quell.ControlVariate(quell.Data(), RP, RP_ALL, approximation=TAYLOR_X),
        r"Model offers no expansion in its data: a datum is empty\.",
    ),
    "no second derivative": (
        _function_problem(_looped, FEATURES),
        quell.ControlVariate(quell.Data(), RP, RP_ALL, approximation=TAYLOR_X),
        r"cannot be differentiated twice in its data \(ValueError: Reverse-mode differentiation does not work",
    ),
    "bound of another likelihood": (
        PROBLEMS["poisson, mean-field"],
        quell.ControlVariate(quell.Data(), RP, CF, approximation=BOUND),
        r"logistic likelihood, as `quell\.logistic_regression` makes it, and not of LinearPredictor\(poisson",
    ),
    "bound of a function": (
        FUNCTION,
        quell.ControlVariate(quell.Data(), RP, CF, approximation=BOUND),
        r"logistic likelihood.*and not of Model\(num_data=5, dim=2\)",
    ),
    "bound of the prior": (
        LOGISTIC,
        quell.ControlVariate(quell.Prior(), RP, CF, approximation=BOUND),
        r"the bound is one of the data term, and the prior term was given",
    ),
    "local, of the prior": (
        LOGISTIC,
        quell.ControlVariate(quell.Prior(), RP, LR),
        r"local reparameterization needs the data term as it is, and prior was given",
    ),
    "local, of an approximation": (
        LOGISTIC,
        quell.ControlVariate(quell.Data(), RP, LR, approximation=BOUND),
        r"needs the data term as it is, and bound\(data\) was given",
    ),
    "local, of a function": (
        FUNCTION,
        quell.ControlVariate(quell.Data(), RP, LR),
        r"needs a linear predictor, and Model\(num_data=5, dim=2\) is not known to have one",
    ),
}


@pytest.mark.parametrize(("problem", "variate", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_refused_variate_says_why(problem, variate, message):
    with pytest.raises(ValueError, match=message):
        quell.Gradient(problem, [variate])


class _NotGaussian(quell.MeanField):
    """As if it were another distribution."""

    @property
    def is_gaussian(self):
        return False


def test_local_reparameterization_needs_a_gaussian():
    problem = quell.Problem(catalogue.MODELS["logistic"], _NotGaussian(2))
    assert LR.refuses(problem, quell.Data()) == (
        "local reparameterization needs a Gaussian family, and _NotGaussian is none"
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("anchor", "message"),
    [
        ([[0.1, 0.2]], r"`anchor` was given with shape \(1, 2\)\. A flat vector.* was needed\. Write for example"),
        ([0.1, np.nan], r"`anchor` was given with 1 NaN or infinite entries out of 2\. Finite numbers were needed"),
    ],
)
def test_a_bad_anchor_is_explained(anchor, message):
    with pytest.raises(ValueError, match=message):
        quell.TaylorInLatent(anchor)


# The default


def _names(problem):
    return [variate.name for variate in quell.default_variates(problem)]


def test_the_default_expands_in_the_data_where_a_datum_is_small_and_an_anchor_out_of_reach(monkeypatch):
    def log_likelihood(z, x):
        return _kernel(x[:, 0]) * z[0] + z[1]

    rows, small = "taylor-x(data): rp - rp[all]", _function_problem(log_likelihood, jnp.ones((5, 100)))
    assert rows not in _names(small)
    monkeypatch.setattr("quell.gradient.default.LONGEST_WAIT", 0)
    assert rows in _names(small)
    assert rows not in _names(_function_problem(log_likelihood, jnp.ones((5, 101))))
    assert rows not in _names(COUNTS)
    assert rows not in _names(_function_problem(_looped, FEATURES))
    assert rows in _names(LOGISTIC)
