# SPDX-License-Identifier: Apache-2.0
"""Expected derivatives of linear predictors: as exact as the docstrings say, and with no more nodes than that takes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell
from quell.models.likelihood import Gaussian, log_sigmoid, poisson
from quell.models.linear_data import LinearData
from quell.models.quadrature import MANY, NARROW, USUAL, WIDE, equally_spaced, gauss_hermite, largest_of_batch
from quell.models.quadrature import normal_expectation as expectation
from tolerances import EXACT, EXPECTATION

MEANS = np.linspace(-8, 8, 33)


def model_of(log_density, dtype="float64", **knowledge):
    data = LinearData(jnp.eye(33, dtype=dtype), jnp.ones(33, dtype))
    return quell.LinearPredictor(data, quell.NormalPrior(), log_density, **knowledge)


def expected(model, mean, variance, *, coarse=False):
    """The value, first and second derivatives of each datum, which sees a predictor of its own."""
    dtype = model.data.targets.dtype
    return _expected(model, *(jnp.asarray(np.broadcast_to(x, 33), dtype) for x in (mean, variance)), coarse)


@eqx.filter_jit
def _expected(model, mean, variance, coarse):
    quadratic = model.expand_expected(mean, variance, model.data, coarse=coarse)
    return model.expected_log_likelihood(mean, variance, model.data), quadratic.slope, quadratic.curvature.weight


def logistic_truth(variance):
    """By twenty thousand nodes."""
    fine = np.linspace(-10, 10, 20_001)
    weight = np.exp(-0.5 * fine**2) / np.exp(-0.5 * fine**2).sum()
    at = MEANS[:, None] + np.sqrt(variance) * fine
    slope = 1.0 / (1.0 + np.exp(at))
    return -np.logaddexp(0.0, -at) @ weight, slope @ weight, -(slope * (1 - slope)) @ weight


@pytest.mark.parametrize("is_smooth", [True, False])
@pytest.mark.parametrize(
    ("dtype", "variance", "error"),
    [
        ("float64", 1e-4, 1e-11),
        ("float64", NARROW["double"] ** 2, 1e-11),
        ("float64", 1.0, 1e-11),
        ("float64", WIDE[True] ** 2, 1e-10),
        ("float64", 25.0, 1e-11),
        ("float64", 50.0, 1e-10),
        ("float64", 100.0, 1e-8),
        ("float32", 1e-4, 2e-5),  # rounding, over the standard deviation
        ("float32", NARROW["single"] ** 2, 1e-6),
        ("float32", 1.0, 1e-6),
        ("float32", WIDE[True] ** 2, 1e-6),
        ("float32", 50.0, 1e-6),
        ("float32", 100.0, 1e-5),
    ],
)
def test_derivatives_of_the_logistic_are_as_exact_as_they_say(dtype, variance, error, is_smooth):
    found = expected(model_of(log_sigmoid, dtype, is_smooth=is_smooth), MEANS, variance)
    for one, truth in zip(found[1:], logistic_truth(variance)[1:], strict=True):
        np.testing.assert_allclose(one, truth, atol=error, rtol=0.0)


@pytest.mark.parametrize("variance", [0.04, 1.0, 25.0])
def test_so_is_the_value(variance):
    found = expected(model_of(log_sigmoid, is_smooth=True), MEANS, variance)
    np.testing.assert_allclose(found[0], logistic_truth(variance)[0], **EXPECTATION)


def poisson_truth(variance):
    rate = np.exp(MEANS + 0.5 * variance)
    return MEANS - rate, 1.0 - rate, -rate


@pytest.mark.parametrize("coarse", [True, False])
@pytest.mark.parametrize("variance", [0.0, 1e-4, 1.0, 25.0, 100.0])
def test_a_poisson_likelihood_knows_its_expectations(variance, coarse):
    made = quell.poisson_regression(np.eye(33), np.ones(33))
    found = expected(made, MEANS, variance, coarse=coarse)
    for one, truth in zip(found, poisson_truth(variance), strict=True):
        np.testing.assert_allclose(one, truth, **EXACT)


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-8), ("float32", 1e-5)])
@pytest.mark.parametrize("variance", [0.01, 4.0, 4.1, 9.0, 25.0])
def test_one_that_does_not_is_right_for_wide_predictors_too(variance, dtype, error):
    found = expected(model_of(poisson, dtype), MEANS, variance)
    for one, truth in zip(found[1:], poisson_truth(variance)[1:], strict=True):
        np.testing.assert_allclose(one, truth, rtol=error, atol=error)


def test_a_quadratic_likelihood_takes_no_nodes():
    model = model_of(Gaussian(0.5), is_quadratic=True)
    value, first, second = expected(model, MEANS, 1e6)
    np.testing.assert_allclose(first, (1.0 - MEANS) / 0.25, **EXACT)
    np.testing.assert_allclose(second, -4.0, **EXACT)
    log_density = -2.0 * (1.0 - MEANS) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(value, log_density - 2.0 * 1e6, **EXACT)


def nodes_used(scale, *, is_smooth, dtype="float64", coarse=False):
    """What is evaluated, told by a function that is one: weights sum to one however many they are."""
    seen = []

    def count(at):
        jax.debug.callback(lambda x: seen.append(x.shape[-1]), at)
        return jnp.ones_like(at)

    scales = jnp.array([0.0, scale], dtype)
    total, tilt = expectation(count, jnp.zeros(2, dtype), scales, is_smooth=is_smooth, coarse=coarse)
    jax.effects_barrier()
    np.testing.assert_allclose(total, 1.0, rtol=1e-6)
    np.testing.assert_allclose(tilt, 0.0, atol=1e-6)
    return seen


@pytest.mark.parametrize(
    ("scale", "is_smooth", "dtype", "number"),
    [
        (0.2, True, "float64", 8),
        (0.3, True, "float64", 64),
        (2.9, True, "float64", 64),
        (3.1, True, "float64", 192),
        (0.2, False, "float64", 64),
        (2.1, False, "float64", 256),
        (0.4, True, "float32", 8),
        (0.6, True, "float32", 32),
        (3.1, True, "float32", 80),
    ],
)
def test_the_widest_normal_decides_how_many_nodes_there_are(scale, is_smooth, dtype, number):
    assert nodes_used(scale, is_smooth=is_smooth, dtype=dtype) == [number]


def test_logistic_regression_is_known_to_be_smooth():
    assert quell.logistic_regression([[1.0]], [1]).is_smooth


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_coarse_nodes_do_not_depend_on_the_widths(scale):
    """An anchor's expansion of a row is then the same in every minibatch."""
    assert nodes_used(scale, is_smooth=True, coarse=True) == [10]


def test_a_branch_stays_one_branch_for_replicates_with_rows_of_their_own():
    """Batched over, a choice of its own for each would evaluate all nodes for all."""
    scales = jnp.array([[0.1], [1.0], [0.2]])
    assert jax.vmap(largest_of_batch)(scales[:, 0]).tolist() == [1.0, 1.0, 1.0]

    def each(scale):
        return expectation(jnp.tanh, jnp.ones(1), scale, is_smooth=True)[0]

    traced = str(jax.make_jaxpr(jax.vmap(each))(scales))
    assert "cond[" in traced
    np.testing.assert_allclose(jax.vmap(each)(scales), [each(s) for s in scales], **EXACT)


@pytest.mark.parametrize("variance", [0.01, 1.0, 16.0])
def test_the_expected_value_has_the_expected_derivatives(variance):
    """In both modes, and once more: the second derivative in the mean is the first in the variance, twice."""
    model = model_of(log_sigmoid, is_smooth=True)

    def total(mean, variance):
        return jnp.sum(model.expected_log_likelihood(mean, variance, model.data))

    mean, variance = jnp.asarray(MEANS), jnp.full(33, variance)
    _, first, second = expected(model, mean, variance)
    by_mean, by_variance = jax.grad(total, (0, 1))(mean, variance)
    np.testing.assert_allclose(by_mean, first, **EXACT)
    np.testing.assert_allclose(2.0 * by_variance, second, **EXACT)
    forward = jax.jvp(total, (mean, variance), (jnp.ones(33), jnp.zeros(33)))[1]
    np.testing.assert_allclose(forward, jnp.sum(first), **EXACT)
    np.testing.assert_allclose(jnp.diag(jax.hessian(total)(mean, variance)), second, **EXPECTATION)


RULES = [rule for each in (USUAL, *MANY.values()) for rule in each.values()]


@pytest.mark.parametrize("nodes", [gauss_hermite(8), *(equally_spaced(*rule) for rule in RULES)])
def test_the_nodes_have_the_moments_of_a_normal(nodes):
    moments = [nodes[1] @ nodes[0] ** k for k in range(6)]
    np.testing.assert_allclose(moments, [1, 0, 1, 0, 3, 0], atol=1e-6)
