# SPDX-License-Identifier: Apache-2.0
"""Addends and linear functions read from programs, and exact expectations by them."""

import functools
import gc
import itertools
import sys
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import quell
from numpyro_models import CASES
from quell.core.program import equations
from quell.evaluation import expectation as expectations
from quell.evaluation import node_sum
from quell.evaluation.expectation import MOST_LEVEL, USUAL_LEVEL, Expectation, Missed, aligned
from quell.families.gaussian import Gaussian
from quell.fit import attempts
from quell.fit.driver import run_plan
from quell.fit.method import choose
from quell.fit.options import FitOptions
from quell.fit.starts import MOST_STARTS
from quell.structure import is_concave, read_structure
from quell.structure.addends import MOST_WIDE
from quell.structure.forms import Form
from structured_models import MODELS, OPAQUE


@functools.cache
def made(name):
    return quell.from_numpyro({**MODELS, **OPAQUE}[name])


def some_gaussian(dim, scale, seed=0):
    """With correlations."""
    rng = np.random.default_rng(seed)
    return Gaussian(
        jnp.asarray(0.3 * rng.normal(size=dim)),
        factor=jnp.asarray(scale * (np.eye(dim) + 0.3 * np.tril(rng.normal(size=(dim, dim)), -1))),
    )


FEW = ("logistic", "student", "non_centred_schools", "simplex")
"""Those that are tried always."""


def few_first(names, mark):
    return [name if name in FEW else pytest.param(name, marks=mark) for name in names]


# Reading


def test_there_are_many_models():
    assert len(MODELS) >= 40


CONCAVE = {"logistic", "poisson", "lasso", "quadratic_trend", "known_process"}


@pytest.mark.parametrize("name", few_first(MODELS, pytest.mark.slow))
def test_the_addends_of_a_model_are_its_log_density(name):
    """A function that was overlooked would show at any latent; so would a curvature."""
    model = made(name)
    assert model.addends.is_whole
    expectation = Expectation.of(model.addends, float)
    points = 3.0 * np.random.default_rng(0).normal(size=(20, model.dim))
    found, expected = jax.jit(jax.vmap(lambda z: (expectation.at(z), model.log_joint(z))))(points)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    assert model.is_log_concave == (name in CONCAVE)
    if name in CONCAVE:
        curvatures = jax.jit(jax.vmap(jax.hessian(model.log_joint)))(points)
        assert np.max(np.linalg.eigvalsh(curvatures)) < 1e-9


@pytest.mark.parametrize("name", OPAQUE)
def test_what_is_not_understood_is_left_to_be_sampled(name):
    model = made(name)
    assert not model.addends.is_whole
    problem = quell.Problem(model, quell.FullRank(model.dim))
    assert quell.evaluation.exactly(problem) is problem


@pytest.mark.parametrize(
    ("function", "functions"),
    [
        (lambda z: jnp.sum(jnp.cos(z)), 1),
        (lambda z: jnp.cos(z[0] - z[1]) + jnp.cos(z[1] - z[2]), 1),
        (lambda z: jnp.cos(z[0]) * z[1], 2),
        (lambda z: jnp.cos(z[0] + z[1] - z[0]), 1),
        (lambda z: jnp.cos(jnp.cumsum(z)[2] - jnp.cumsum(z)[1]), 1),
        (lambda z: jnp.log(jnp.exp(z[0]) * jnp.exp(z[1])) * jnp.cos(z[2]), 2),
        (lambda z: jnp.cos(z @ jnp.arange(9.0).reshape(3, 3)).sum(), 1),
        (lambda z: jnp.sin(jnp.sort(z)[0]), None),
        (lambda z: jnp.where(z[0] > 0, jnp.sin(z[1]), jnp.cos(z[2])), 3),
        (lambda z: jnp.sin(jax.lax.cond(z[0] > 0, lambda: z[1], lambda: z[2])), None),
        (lambda z: jnp.linalg.slogdet(jnp.diag(jnp.exp(z)))[1], None),
        (lambda z: jnp.sin(z[0]) + jnp.sin(z[0] * z[1] * z[2]), 3),
        (lambda z: jnp.cos(z[0].astype(int).astype(float) + z[1]), None),
        (lambda z: jnp.cos(jnp.take(z, jnp.array([0, 7]), mode="fill")).sum(), None),
        (lambda z: jnp.sum(jnp.sin(z[jnp.array([0, 0, 1])] - z[jnp.array([2, 1, 2])])), 1),
        (lambda z: jnp.sum(jnp.cos(jnp.concatenate([jnp.ones(1), z]))), 1),
    ],
)
def test_the_number_of_linear_functions(function, functions):
    """As many as the gradients of the addends have dimensions, or none where the operation is not understood."""
    structure = read_structure(function, 3)
    assert structure.is_whole == (functions is not None)
    if functions is not None:
        assert max(len(group.functions) for group in structure.groups if group.instructions) == functions


@jax.jit
def logaddexp(a, b):
    """Of the user's own, with a name that JAX has too."""
    return jnp.log(0.05 * jnp.exp(a) + 0.95 * jnp.exp(b))


WEIGHTS = jnp.array([1.0, jnp.nan, 2.0])
PROGRAMS = {
    "a mask that latents leave": lambda z: jnp.exp(jnp.where(z[0] > 0, z[1], -jnp.inf)),
    "a mask within a sum of exponentials": lambda z: jnp.logaddexp(jnp.where(z[0] > 0, z[1], -jnp.inf), z[2]),
    "a fill": lambda z: jnp.cos(z).at[jnp.array([0, 5])].get(mode="fill", fill_value=7.0).sum(),
    "integers": lambda z: jnp.prod((4 * z).astype(int)) * 1.0,
    "integers in a product": lambda z: ((4 * z).astype(int) @ (4 * z).astype(int)) * 1.0,
    "a name of JAX": lambda z: logaddexp(z[0], z[1]),
    "a function of JAX": lambda z: jnp.logaddexp(z[0], z[1]) + jax.nn.softplus(z).sum(),
    "no numbers": lambda z: jnp.nansum(z * WEIGHTS),
    "infinities": lambda z: jnp.minimum(jnp.abs(z) * jnp.array([1.0, jnp.inf, 2.0]), 3.0).sum(),
    "complex numbers": lambda z: jnp.abs(jnp.exp(1j * z[0]) * z[1] + 0.5),
    "a jump": lambda z: 3.0 * jnp.sign(z[0]),
    "no addend at all": lambda z: -jnp.abs(jnp.array([0.0, 1.0, 2.0]) * z[0]).sum(),
    "a root": lambda z: -jnp.sqrt(z[0] ** 2),
    "running products": lambda z: jnp.cumprod(jnp.cos(z)).sum(),
    "a reference category": lambda z: jnp.sum(jnp.cos(jnp.concatenate([jnp.ones(1), z])[jnp.array([0, 1, 0, 2])])),
    "an average over repeats": lambda z: jnp.tile(jnp.sin(z), 2).mean() + jnp.roll(z, 1)[0] * z[2],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_read_as_it_is_or_not_at_all(name):
    function = PROGRAMS[name]
    structure = read_structure(function, 3)
    if structure.is_whole:
        expectation = Expectation.of(structure, float)
        for sign in (1.0, -1.0):
            z = sign * jnp.array([0.7, -0.4, 1.1])
            np.testing.assert_allclose(expectation.at(z), function(z), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("depends", [True, False])
@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=4)), ids=str)
def test_triangular_systems(depends, flags):
    """Two of two equations each, with a matrix that depends on the latent, and one of three with a constant one."""

    def function(z):
        if depends:
            matrix, right = jnp.exp(z[:8].reshape(2, 2, 2)), z[8] * jnp.arange(1.0, 9.0).reshape(2, 2, 2)
        else:
            matrix, right = jnp.arange(1.0, 10.0).reshape(3, 3), z.reshape(3, 3)
        return jnp.sum(jnp.cos(jax.lax.linalg.triangular_solve(matrix, right, **options)))

    options = dict(zip(("left_side", "lower", "transpose_a", "unit_diagonal"), flags, strict=True))
    structure = read_structure(function, 9)
    assert structure.is_whole
    z = jnp.asarray(np.random.default_rng(0).normal(size=9))
    np.testing.assert_allclose(Expectation.of(structure, float).at(z), function(z), rtol=1e-9)


@pytest.mark.parametrize(
    ("function", "is_read"),
    [
        (lambda z: jnp.cos(jnp.zeros(4).at[jnp.array([2, 0, 3])].add(z)).sum(), True),
        (lambda z: jnp.cos(jnp.tile(z, 2).at[jnp.array([2, 0, 3])].add(z[::-1])).sum(), True),
        (lambda z: jnp.cos(jnp.zeros(4).at[jnp.array([2, 2, 3])].add(z)).sum(), False),  # two at one place
        (lambda z: jnp.cos(jnp.zeros(4).at[(z > 0).astype(int)].add(z)).sum(), False),
    ],
)
def test_scattered_sums(function, is_read):
    structure = read_structure(function, 3)
    assert structure.is_whole == is_read
    if is_read:
        z = jnp.array([0.7, -0.4, 1.1])
        np.testing.assert_allclose(Expectation.of(structure, float).at(z), function(z), rtol=1e-9)


def test_few_addends_may_see_five_linear_functions():
    def function(number, rows):
        return lambda z: jnp.sum(jnp.cos(jnp.arange(1.0, rows + 1) * jnp.prod(z[:number])))

    for number, rows, is_read in ((4, MOST_WIDE, True), (5, 3, True), (4, MOST_WIDE + 1, False), (6, 1, False)):
        assert read_structure(function(number, rows), 6).is_whole == is_read


def test_elements_that_are_changed_in_place_are_not_moved():
    assert not read_structure(lambda z: jnp.sum(z.at[0].apply(lambda x: 2 * x) ** 3), 2).is_whole
    assert read_structure(lambda z: jnp.sum(z.at[0].set(1.0) ** 2), 2).is_whole


def test_what_the_reader_was_not_made_for_is_sampled(monkeypatch):
    problem = quell.Problem(
        quell.Model(lambda z, x: -((x - z[0]) ** 2), quell.NormalPrior(), jnp.arange(3.0), 2), quell.MeanField(2)
    )

    def refuse(function, dim):
        raise NotImplementedError("an operation")

    monkeypatch.setattr("quell.models.base.read_structure", refuse)
    with pytest.warns(UserWarning, match="The structure of the model could not be read"):
        assert quell.evaluation.exactly(problem) is problem


def test_equal_addends_are_one():
    """Rows with the same covariates and outcome."""
    structure = read_structure(lambda z: jnp.sum(jnp.cos(z[jnp.arange(1000) % 3])), 3)
    (group,) = structure.groups
    np.testing.assert_array_equal(np.sort(group.weight), [333, 333, 334])


SQUARES = np.random.default_rng(3)
FEATURES, OUTCOMES = SQUARES.normal(size=(500, 3)), 50.0 + SQUARES.normal(size=500)
FAR = np.where(np.arange(500) < 3, 800.0, 0.0)
PLACES, FLAGS = SQUARES.integers(0, 20, 500), SQUARES.integers(0, 2, 500)


@pytest.mark.parametrize(
    ("function", "dim", "most"),
    [
        (lambda z: -0.5 * jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2), 3, 4),
        (lambda z: -0.5 * jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2) * jnp.exp(-2 * z[3]), 4, 4),
        (lambda z: -0.5 * jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2) / jnp.exp(z[3]) ** 2, 4, 4),
        (lambda z: jnp.vdot(OUTCOMES - FEATURES @ z[:3], OUTCOMES - FEATURES @ z[:3]), 3, 4),
        (lambda z: -0.5 * jnp.sum(((OUTCOMES - z[PLACES]) / jnp.exp(z[20])) ** 2), 21, 21),
        # one square of intercept and slope, one of the intercept in groups with both flags, one slope, one constant
        (lambda z: -0.5 * jnp.sum(((OUTCOMES - z[PLACES] - z[20] * FLAGS) / jnp.exp(z[21])) ** 2), 22, 64),
        (lambda z: jnp.sum(jnp.sign(FEATURES[:, 0]) * (OUTCOMES - FEATURES @ z[:3]) ** 2), 3, 8),
        (lambda z: -jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2 * jnp.exp(z[3 + FLAGS])), 5, 8),
        (lambda z: -jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2 * jnp.exp(z[3] + FEATURES[:, 0])), 4, 4),
        (lambda z: -jnp.sum((OUTCOMES - FEATURES @ z[:3]) ** 2 * jnp.exp(z[3] - FAR)), 4, 4),
    ],
    ids=[
        "known",
        "regression",
        "quotient",
        "product",
        "intercepts",
        "slope",
        "signs",
        "scales",
        "offsets",
        "far offsets",
    ],
)
def test_squares_of_many_rows_are_few(function, dim, most):
    """By their QR decomposition, with all digits of the sum."""
    structure = read_structure(function, dim)
    assert sum(group.weight.size for group in structure.groups) <= most
    expectation = Expectation.of(structure, jnp.float64)
    for z in 0.5 * np.random.default_rng(0).normal(size=(3, dim)):
        np.testing.assert_allclose(expectation.at(jnp.asarray(z)), function(jnp.asarray(z)), rtol=1e-12)


def test_squares_of_few_rows_stay():
    structure = read_structure(lambda z: -0.5 * jnp.sum((OUTCOMES[:4] - FEATURES[:4] @ z) ** 2), 3)
    (group,) = structure.groups
    np.testing.assert_allclose(np.sort(group.functions[0].weight, axis=0), np.sort(-FEATURES[:4], axis=0))


def test_nothing_of_the_size_of_rows_times_coordinates_is_made():
    """Two coordinates a row, of very many."""
    size, rows = 5000, 20_000
    one, two = (jnp.asarray(np.random.default_rng(seed).integers(0, size, rows)) for seed in (0, 1))
    structure = read_structure(lambda z: jnp.sum(jax.nn.log_sigmoid(z[one] - z[two])), size)
    assert sum(part.size for group in structure.groups for each in group.functions for part in each) < 8 * rows


# Concavity


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda z: -jnp.sum(jnp.log1p(jnp.exp(z))) - z[0] ** 2, True),
        (lambda z: -jnp.exp(3 * z[0] - z[1]) - jnp.abs(z[1]) + z[0], True),
        (lambda z: -0.5 * jnp.sum((jnp.asarray([[1.0, 2.0], [0.0, 1.0]]) @ z - 3) ** 2), True),
        (lambda z: jnp.sum(jnp.log(jnp.exp(z))) - jnp.sum(z**2), True),  # beyond some latents no number
        (lambda z: jnp.exp(z[0]) - z[1] ** 2, False),
        (lambda z: jnp.abs(z[0]), False),
        (lambda z: z[0] * z[1], False),
        (lambda z: -(z[0] ** 2) * jnp.exp(z[1]), False),
        (lambda z: -jnp.log1p((z[0] - 200.0) ** 2), False),  # near its mode it is
        (lambda z: jnp.sum(jnp.log1p(jnp.exp(z))), False),
        (lambda z: -jnp.log(jnp.exp(z[0]) + jnp.exp(z[1])), False),  # it is, and sees two linear functions
        (lambda z: 0.01 * jnp.cos(z[0]) - z[1] ** 2, False),
    ],
)
def test_concave_sums(function, expected, double):
    with jax.enable_x64(double):
        assert is_concave(read_structure(function, 2)) == expected


@pytest.mark.parametrize(
    ("family", "starts"), [(quell.MeanField(3), 1), (quell.FullRank(3), 1), (quell.LowRank(3, rank=1), MOST_STARTS)]
)
def test_a_concave_model_needs_one_start(family, starts):
    method = choose(FitOptions(), quell.Problem(made("logistic"), family), jax.random.key(0))
    assert method.algorithm.most_starts == starts


@pytest.mark.parametrize("level", [0, None], ids=["exact", "on draws"])
def test_fits_know_whether_they_are_alone(level):
    model = quell.Model(lambda z, y: -((y - z[0] * jnp.cos(z[1])) ** 2), quell.NormalPrior(), jnp.ones(5), 2)
    problem, key = quell.Problem(model, quell.MeanField(2)), jax.random.key(0)
    methods = [choose(FitOptions(), problem, keys, level) for keys in (key, jax.random.split(key, 2))]
    objectives = [method.algorithm.objective for method in methods]
    assert [objective.is_exact for objective in objectives] == [level is not None] * 2
    assert [objective.is_alone for objective in objectives] == [True, False]


# Expectations


def dense(function, gaussian, number):
    """A tensor rule over all coordinates."""
    dim = gaussian.mean.size
    nodes, weights = np.polynomial.hermite_e.hermegauss(number)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[nodes] * dim)], axis=1)
    weight = np.prod([axis.ravel() for axis in np.meshgrid(*[weights / weights.sum()] * dim)], axis=0)
    points = gaussian.mean + jnp.asarray(grid[weight > 1e-18]) @ gaussian.factor.T
    values = jax.jit(lambda z: jax.lax.map(function, z, batch_size=1000))(points)
    return float(weight[weight > 1e-18] @ np.asarray(values))


SMALL = (
    *("autoregression", "beta_binomial", "binomial", "circular", "gamma", "gaussian", "gompertz", "log_normal"),
    *("logistic", "mixture", "negative_binomial", "non_centred_schools", "ordinal", "poisson"),
    *("probit", "quadratic_trend", "simplex", "student", "truncated_prior", "two_scales", "uniform_prior"),
    *("variance_with_a_prior", "weibull", "zero_inflated", "bradley_terry"),
)
"""Of at most five coordinates, and without a kink, whose closed form is exact where the tensor rule is not."""


@pytest.mark.parametrize("name", few_first(SMALL, pytest.mark.release))
@pytest.mark.slow
def test_expectations_are_those_of_a_tensor_rule(name):
    model = made(name)
    gaussian = some_gaussian(model.dim, 0.1)
    number = {2: 40, 3: 24, 4: 14, 5: 10}[model.dim]
    expectation = Expectation.of(model.addends, float, level=MOST_LEVEL)
    np.testing.assert_allclose(expectation(gaussian), dense(model.log_joint, gaussian, number), rtol=1e-9, atol=1e-9)
    variance = jnp.diagonal(gaussian.factor) ** 2
    alone = Gaussian(gaussian.mean, factor=jnp.diag(jnp.sqrt(variance)))
    truth = expectation(alone)
    for same in (Gaussian(gaussian.mean, variance), Gaussian(gaussian.mean, variance / 4, alone.factor * 0.75**0.5)):
        np.testing.assert_allclose(expectation(same), truth, rtol=1e-11)


@pytest.mark.parametrize("dim", [4, 5])
def test_four_and_five_linear_functions(dim):
    def function(z):
        return jnp.sin(jnp.prod(1.0 + z)) + z[0] * z[1]

    gaussian = some_gaussian(dim, 0.05)
    found = Expectation.of(read_structure(function, dim), float, level=MOST_LEVEL)(gaussian)
    np.testing.assert_allclose(found, dense(function, gaussian, 9), rtol=1e-7)


def test_the_expectation_of_an_absolute_value():
    expectation = Expectation.of(made("laplace").addends, float)
    gaussian = some_gaussian(3, 0.2)
    nodes = np.linspace(-9, 9, 200_001)
    mass = np.exp(-0.5 * nodes**2) / np.exp(-0.5 * nodes**2).sum()

    def one(mean, scale):
        return mass @ np.abs(mean + scale * nodes)

    (group,) = (group for group in expectation.groups if group.is_absolute)
    moments = group._moments(gaussian)
    growth = np.exp(moments.mean[1] + 0.5 * moments.covariance(1, 1))
    shifted = np.broadcast_arrays(moments.mean[0] + moments.covariance(1, 0), np.sqrt(moments.covariance(0, 0)))
    truth = growth * [one(*pair) for pair in zip(*shifted, strict=True)]
    np.testing.assert_allclose(group._product(moments), truth, rtol=1e-8)


@pytest.mark.parametrize("family", [quell.FullRank(4), quell.MeanField(4), quell.LowRank(4, 2)], ids=repr)
def test_the_gradient_is_that_of_differences(family):
    """In every family, through its own parameters."""
    model = made("ordinal")
    problem = quell.evaluation.exactly(quell.Problem(model, family))
    params = family.init()
    gradient = jax.jit(jax.grad(lambda params: quell.exact_elbo(problem, params)))(params)
    value = jax.jit(lambda params: quell.exact_elbo(problem, params))
    leaf = params.loc
    for at in range(2):
        step = 1e-5 * jnp.eye(4)[at]
        ends = [value(params._replace(loc=leaf + sign * step)) for sign in (1, -1)]
        np.testing.assert_allclose(gradient.loc[at], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize("name", ["logistic", "weibull", "student"])
def test_derivatives_of_sums_over_nodes_are_those_of_the_sums(name, monkeypatch):
    """Of one, two and three linear functions: by hand, in chunks, as by automatic differentiation of the values."""
    model = made(name)
    gaussian, way = some_gaussian(model.dim, 0.1), some_gaussian(model.dim, 0.1, seed=1)

    def derivatives():
        gradient = jax.grad(Expectation.of(model.addends, float))
        return jax.jit(lambda: jax.jvp(gradient, (gaussian,), (way,)))()

    by_program = lambda *given: node_sum._jet(given[0], 0, *given[1:])[0]  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(expectations, "node_sum", by_program)
        truth = derivatives()
    for at_once in (2**18, 8 * 8**3):
        monkeypatch.setattr(node_sum, "NUMBERS_AT_ONCE", at_once)
        for one, other in zip(jax.tree.leaves(derivatives()), jax.tree.leaves(truth), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("most_kept", [2**26, 2**6])
def test_second_derivatives_are_kept_between_products_where_there_is_room(most_kept, monkeypatch):
    """A product that computes them again evaluates the addends, which take exponentials."""
    expectation = Expectation.of(made("logistic").addends, float)
    gaussian, way = some_gaussian(3, 0.1), some_gaussian(3, 0.1, seed=1)
    expected = jax.jit(lambda: jax.jvp(jax.grad(expectation), (gaussian,), (way,))[1])()
    monkeypatch.setattr(expectations, "MOST_KEPT", most_kept)
    product = jax.linearize(jax.grad(expectation), gaussian)[1]
    for one, other in zip(jax.tree.leaves(product(way)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    names = {equation.primitive.name for equation in equations(jax.make_jaxpr(product)(way).jaxpr)}
    assert ("exp" in names) is (most_kept == 2**6)


def test_features_that_are_zero_are_not_seen():
    """A function that is asked for twice is one, and rows of indicators are narrow."""
    rng = np.random.default_rng(0)
    features = np.stack([np.arange(40) % 2, rng.normal(size=40)], axis=1)

    def twice(z):
        return jnp.sum(jnp.logaddexp(-((jnp.asarray(features) @ z) ** 2), -jnp.abs(jnp.asarray(features) @ z)))

    (group,) = read_structure(twice, 2).groups
    assert len(group.functions) == 1
    indicators = jnp.asarray(np.eye(50)[rng.integers(50, size=400)])
    (group,) = read_structure(lambda z: jnp.sum(jnp.tanh(indicators @ z) * jnp.arange(400.0)), 50).groups
    assert group.functions[0].width == 1


def test_a_path_whose_first_level_is_fixed_is_read():
    """Increments are added behind it: where nothing is added the number of the element is -1."""
    found = read_structure(lambda z: jnp.sum(jnp.tanh(jnp.zeros(4).at[1:].add(z))), 3)
    assert found.is_whole
    assert sum(group.weight.size for group in found.groups) == 3


def test_rows_that_see_nearly_the_same_coordinates_share_them():
    """Features with zeros are a dense matrix; who plays against whom is not."""
    features = np.random.default_rng(0).normal(size=(30, 5))
    features[::3, 1], features[1::4, 2:4] = 0.0, 0.0

    def function(z):
        return jnp.sum(jnp.tanh(jnp.asarray(features) @ z))

    (group,) = Expectation.of(read_structure(function, 5), float).groups
    assert group.maps[0].index.shape == (1, 5)
    gaussian = some_gaussian(5, 0.1)
    np.testing.assert_allclose(group.expectation(gaussian, MOST_LEVEL), dense(function, gaussian, 10), rtol=1e-9)
    first, second = np.arange(40), np.roll(np.arange(40), 7)
    (pairs,) = Expectation.of(read_structure(lambda z: jnp.sum(jnp.tanh(z[first] - z[second])), 40), float).groups
    assert pairs.maps[0].index.shape == (40, 2)


def test_more_nodes_show_what_is_missed():
    expectation = Expectation.of(made("logistic").addends, float)
    narrow, wide = (expectation.value_and_missed(some_gaussian(3, scale))[1].by_nodes for scale in (0.1, 8.0))
    assert abs(narrow) < 1e-9 < 1e-3 < abs(wide)


def test_kinks_that_cancel_are_integrated_as_one_smooth_function():
    """As older versions of NumPyro write the logistic likelihood."""

    def softplus(u):
        return jnp.maximum(u, 0) + jnp.log1p(jnp.exp(-jnp.abs(u)))

    weights = np.array([-1.0, -2.0])
    structure = read_structure(lambda z: weights @ softplus(z[:2] - z[2]), 3)
    (group,) = structure.groups
    assert (len(group.functions), group.weight.size) == (1, 2)
    assert is_concave(structure)
    gaussian = some_gaussian(3, 0.3)
    nodes, probabilities = np.polynomial.hermite_e.hermegauss(60)
    rows = np.array([[1.0, 0, -1], [0, 1, -1]])
    means, sds = rows @ gaussian.mean, np.linalg.norm(rows @ gaussian.factor, axis=1)
    at = np.logaddexp(0, means[:, None] + sds[:, None] * nodes)
    exact = weights @ at @ probabilities / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(Expectation.of(structure, float)(gaussian), exact, rtol=1e-9)


def test_functions_that_are_nearly_the_same_keep_their_curvature_in_single_precision():
    """Logits whose common part is wide and whose contrasts are narrow: the prior alone decides the first."""
    structure = read_structure(lambda z: 1000.0 * jax.nn.log_softmax(z)[0], 3)

    def curvature(dtype):
        expectation = Expectation.of(structure, dtype)

        def at(factor):
            return expectation(Gaussian(jnp.asarray([0.3, -0.2, 0.1], dtype), factor=factor))

        factor = jnp.asarray(np.concatenate([np.full((3, 1), 20.0), 0.005 * np.eye(3)], axis=1), dtype)
        way = jnp.asarray(0.01 * np.random.default_rng(0).normal(size=factor.shape), dtype)
        return np.asarray(jax.jit(lambda: jax.jvp(jax.grad(at), (factor,), (way,))[1])())

    truth = curvature(jnp.float64)
    assert np.linalg.norm(curvature(jnp.float32) - truth) < 1e-3 * np.linalg.norm(truth)


ALTERNATIVES = {
    "full-rank": Gaussian(jnp.zeros(3), factor=0.1 * jnp.eye(3) + 0.05 * jnp.tril(jnp.ones((3, 3)))),
    "mean-field": Gaussian(jnp.zeros(3), jnp.asarray([0.01, 0.02, 0.05])),
    "low-rank": Gaussian(jnp.zeros(3), jnp.asarray([0.01, 0.02, 0.05]), jnp.asarray([[0.1], [-0.1], [0.2]])),
}


@pytest.mark.parametrize("name", ALTERNATIVES)
def test_functions_that_are_the_same_in_some_rows(name):
    """Choices among three alternatives, of which some rows have two alike: together they are what they are apart."""
    features = np.random.default_rng(0).normal(size=(40, 3, 3))
    features[:20, 1] = features[:20, 0]

    def of(rows):
        x = jnp.asarray(features[rows])
        structure = read_structure(lambda b: jnp.sum(jax.nn.log_softmax(x @ b, axis=1)[:, 2]), 3)
        return Expectation.of(structure, float, level=MOST_LEVEL)(ALTERNATIVES[name])

    np.testing.assert_allclose(of(slice(None)), of(slice(20)) + of(slice(20, None)), rtol=1e-9)
    whole = Gaussian(jnp.zeros(3), factor=_factor(ALTERNATIVES[name]))
    x = jnp.asarray(features)
    truth = dense(lambda b: jnp.sum(jax.nn.log_softmax(x @ b, axis=1)[:, 2]), whole, 16)
    np.testing.assert_allclose(of(slice(None)), truth, rtol=1e-9)


def _factor(gaussian):
    variance = jnp.zeros(3) if gaussian.variance is None else gaussian.variance
    factor = jnp.zeros((3, 1)) if gaussian.factor is None else gaussian.factor
    return jnp.linalg.cholesky(jnp.diag(variance) + factor @ factor.T)


@pytest.mark.parametrize("rows", [1, 4])
def test_functions_of_the_same_coordinates_are_aligned(rows):
    """Padding, which repeats a coordinate, counts for nothing."""
    rng = np.random.default_rng(rows)
    one, two = (
        Form(rng.permuted(np.tile(np.arange(5), (rows, 1)), axis=1)[:, :width], rng.normal(size=(rows, width)), zero)
        for width, zero in ((3, np.zeros(rows)), (2, np.ones(rows)))
    )
    one.weight[0, 1] = 0.0
    z = rng.normal(size=5)
    for before, after in zip((one, two), aligned([one, two]), strict=True):
        assert all(
            np.unique(seen[there]).size == there.sum()
            for seen, there in zip(after.seen, after.weight != 0, strict=True)
        )
        np.testing.assert_allclose((after.weight * z[after.seen]).sum(1), (before.weight * z[before.seen]).sum(1))
        np.testing.assert_array_equal(after.offset, before.offset)


# Fits


def test_schools_reach_their_optimum():
    """The non-centred form of eight schools, whose ELBO is known to six digits."""
    case = CASES["eight schools"]
    model = quell.from_numpyro(case.model, *case.args, **case.kwargs)
    results = [quell.fit(model, quell.FullRank(10), key=jax.random.key(seed)) for seed in range(3)]
    for result in results:
        assert result.status is quell.Status.CONVERGED
        assert result.choice.exact
        np.testing.assert_allclose(result.final_elbo.value, -31.53400, atol=1e-4)
        assert result.final_elbo.standard_error == 0


def test_leaps_enter_a_density_that_is_not_concave(key):
    """Coefficients and the scale of the noise, far from both: without absolute eigenvalues it takes 200 gradients."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=40), rng.normal(size=40)
    data = {"x": x, "y": 90.0 + 15.0 * x + 5.0 * noise}

    def log_likelihood(z, rows):
        return -z[2] - 0.5 * jnp.square((rows["y"] - z[0] - z[1] * rows["x"]) * jnp.exp(-z[2]))

    model = quell.Model(log_likelihood, quell.NormalPrior(0.0, 100.0), data, 3)
    result = quell.fit(model, quell.FullRank(3), key=key)
    assert result.choice.exact
    assert result.status is quell.Status.CONVERGED
    assert result.num_gradients < 120  # of three starts


def test_nodes_at_which_a_density_underflows_do_not_count():
    """The probability of a level is a difference of two logistic functions: zero in single precision far away."""

    with jax.enable_x64(False):
        structure = read_structure(lambda z: jnp.log(jax.nn.sigmoid(z[0] + 1.0) - jax.nn.sigmoid(z[0])), 1)
        expectation = Expectation.of(structure, jnp.float32)
        gaussian = Gaussian(jnp.zeros(1, jnp.float32), jnp.full(1, 6.0, jnp.float32))
        value, missed = expectation.value_and_missed(gaussian)
        np.testing.assert_allclose(value, expectation(gaussian), rtol=1e-6)
        assert sum(missed) < 1e-3  # false for NaN


@pytest.mark.parametrize(("scale", "is_narrow"), [(0.02, True), pytest.param(2.0, False, marks=pytest.mark.slow)])
def test_many_rows_begin_with_few_nodes(scale, is_narrow, monkeypatch):
    """Where they are exact they are kept; elsewhere the fit goes on with more, and ends where the usual ones lead."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(60, 2)))

    def model():
        return quell.Model(
            lambda z, x: jnp.log(jnp.cosh(x @ z)) - jnp.square((x @ z - 1) / scale), quell.NormalPrior(), x, 2
        )

    usual = quell.fit(model(), quell.FullRank(2), key=jax.random.key(0))
    assert usual.problem.expectation.level == USUAL_LEVEL
    monkeypatch.setattr(expectations, "MANY_EVALUATIONS", 0)
    few = quell.fit(model(), quell.FullRank(2), key=jax.random.key(0))
    assert (few.problem.expectation.level == 0) == is_narrow
    np.testing.assert_allclose(few.final_elbo.value, usual.final_elbo.value, atol=2e-3)
    assert few.status is quell.Status.CONVERGED


def test_where_more_nodes_would_take_too_long_a_warning_tells_what_is_missed(monkeypatch):
    """What sampled gradients would miss nobody knows."""
    model = quell.Model(lambda z, x: -jnp.abs(jnp.sin(9 * z[0])) * x, quell.NormalPrior(), 5 * jnp.ones(50), 1)
    monkeypatch.setattr(expectations, "MANY_EVALUATIONS", 0)
    monkeypatch.setattr(sys.modules["quell.evaluation.problem"], "MOST_EVALUATIONS", 5)
    monkeypatch.setattr(sys.modules["quell.fit.common_draws"], "MOST_VALUES_OF_ALL", 0)
    result = quell.fit(model, quell.MeanField(1), khat=False, key=jax.random.key(0))
    assert result.choice.exact
    assert any("The expectations that the fit followed miss" in text for text in result.warnings)


@pytest.mark.slow
def test_a_kink_that_no_rule_resolves_is_sampled(monkeypatch):
    """Nodes do not see a jump of the slope: twice as many say something else, and the fit samples instead."""
    runs = []
    monkeypatch.setattr(attempts, "run_plan", lambda *given: runs.append(run_plan(*given)[0]) or [runs[-1]])
    data = jnp.asarray(np.random.default_rng(0).normal(size=50))
    model = quell.Model(lambda z, x: -5.0 * jnp.abs(jnp.sin(x - z[0])), quell.NormalPrior(), data, 1)
    result = quell.fit(model, quell.FullRank(1), key=jax.random.key(0))
    assert model.addends.is_whole
    assert result.choice.base == "common draws"
    assert len(runs) == 3
    np.testing.assert_allclose(result.seconds.total, sum(run.seconds.total for run in runs), rtol=1e-2)


def test_an_elbo_that_draws_contradict_is_told(monkeypatch):
    model = made("gaussian")
    result = quell.fit(model, quell.FullRank(model.dim), key=jax.random.key(0))
    assert not any("draws say" in text for text in result.warnings)
    monkeypatch.setitem(result.__dict__, "_quadrature", (result.final_elbo.value + 50.0, Missed(0.0, 0.0)))
    del result.__dict__["warnings"], result.__dict__["final_elbo"]
    assert any("The ELBO without sampling is" in text for text in result.warnings)


def test_a_second_fit_is_not_compiled_again():
    traces = []

    def log_likelihood(z, x):
        traces.append(None)
        return jnp.cos(x @ z)

    data = jnp.asarray(np.random.default_rng(0).normal(size=(9, 2)))
    model = quell.Model(log_likelihood, quell.NormalPrior(), data, 2)
    first = quell.fit(model, quell.MeanField(2), key=jax.random.key(0))
    assert first.choice.exact
    count = len(traces)
    second = quell.fit(model, quell.MeanField(2), key=jax.random.key(1))
    assert len(traces) <= count + 4, "checks of its shape and its rows look; nothing is compiled"
    np.testing.assert_allclose(second.final_elbo.value, first.final_elbo.value, atol=1e-4)
    other = quell.Model(log_likelihood, quell.NormalPrior(), 2.0 * data, 2)
    before = len(traces)
    assert quell.fit(other, quell.MeanField(2), key=jax.random.key(0)).choice.exact
    assert len(traces) - before < count, "it is checked and read, and its program is that of the first"


def test_what_is_read_of_a_model_leaves_its_programs_compiled_and_goes_with_it():
    model = quell.logistic_regression(np.ones((3, 2)), np.array([0, 1, 1]))
    before, alive = jax.tree.structure(model), weakref.ref(model)
    assert model.addends is model.addends
    assert jax.tree.structure(model) == before, "Equinox counts attributes; programs are kept by structure"
    del model
    gc.collect()
    assert alive() is None


@pytest.mark.slow
def test_a_checkpointed_fit_whose_nodes_are_too_few_is_told(tmp_path):
    model = quell.Model(
        lambda z, x: -0.015 * jnp.log1p((z[0] / 1e-3) ** 2) + 0 * x, quell.NormalPrior(0.0, 10.0), jnp.zeros(20), 1
    )
    kept = quell.Checkpoint(tmp_path / "fit.npz")
    result = quell.fit(model, quell.MeanField(1), checkpoint=kept, khat=False, key=jax.random.key(0))
    assert any("The expectations that the fit followed miss" in text for text in result.warnings)


@pytest.mark.slow
def test_a_scale_far_from_the_start_is_found_from_every_key():
    """Earnings by height, with flat priors: at the start the log density is -1e11, and it is not concave there."""
    rng = np.random.default_rng(0)
    height = rng.normal(67, 4, 1000)
    earnings = -60_000 + 1_260 * height + 19_000 * rng.normal(size=1000)

    def flat(name, support):
        return numpyro.sample(name, dist.ImproperUniform(support, (), ()))

    def regression(height, earnings):
        line = flat("intercept", dist.constraints.real) + flat("slope", dist.constraints.real) * height
        scale = flat("scale", dist.constraints.positive)
        with numpyro.plate("people", len(height)):
            numpyro.sample("earnings", dist.Normal(line, scale), obs=earnings)

    with jax.enable_x64(False):
        model = quell.from_numpyro(regression, height.astype(np.float32), earnings.astype(np.float32))
        for seed in range(6):
            result = quell.fit(model, quell.FullRank(3), key=jax.random.key(seed))
            assert result.status is quell.Status.CONVERGED
            np.testing.assert_allclose(result.final_elbo.value, -11271.6, atol=0.1)
