# SPDX-License-Identifier: Apache-2.0
"""Newton steps on common random numbers: the pieces against exact ones, the fits against what is known of them."""

import dataclasses
import functools
import importlib
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree

import quell
from numpyro_models import CENTRED
from quell.core.estimate import Estimate
from quell.evaluation import exactly
from quell.fit import attempts
from quell.fit.common_draws import (
    LARGEST_EXACT_SEARCH,
    LARGEST_SEARCH,
    VALUES_OF_PARAM,
    CommonDraws,
    ExactElbo,
    LocalElbo,
)
from quell.fit.common_noise import Draws, common_noise
from quell.fit.gap import measure_gap
from quell.fit.line_search import line_search
from quell.fit.newton import CURVATURE_BLOCKS, Newton, Phase
from quell.fit.plan import FitPlan
from quell.fit.starts import NARROWER, WIDER, Starts, climbs_after, elsewhere, other_scale
from quell.fit.trust_region import TrustStep, trust_step
from quell.models.linear import LinearPredictor
from quell.models.linear_data import LinearData
from tolerances import EXACT

pytestmark = pytest.mark.usefixtures("on_draws")

FAMILIES = {
    "mean-field": quell.MeanField(3),
    "mean-field, plain": quell.MeanField(3, log_scale=False),
    "full-rank": quell.FullRank(3),
    "full-rank, plain": quell.FullRank(3, log_scale=False),
    "low-rank": quell.LowRank(3, rank=1),
}


def some_draws(objective, blocks):
    return Draws(jnp.asarray(5, jnp.uint32), *jnp.asarray([blocks, objective.pieces], jnp.int32))


def somewhere(family):
    flat, unravel = ravel_pytree(family.init())
    params = unravel(flat + 0.3 * jax.random.normal(jax.random.key(1), flat.shape))
    return params._replace(scale=jnp.tril(params.scale)) if isinstance(family, quell.FullRank) else params


def quadratic():
    """A log density that is quadratic in the latent, given as a function."""
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(7, 3)), rng.normal(size=7)
    linear = quell.gaussian_regression(features, targets, noise=0.5)
    constant = jnp.log(0.5) + 0.5 * jnp.log(2 * jnp.pi)

    def log_likelihood(z, row):
        return -0.5 * ((row["y"] - row["x"] @ z) / 0.5) ** 2 - constant

    data = {"x": jnp.asarray(features), "y": jnp.asarray(targets)}
    return linear, quell.Model(log_likelihood, quell.NormalPrior(), data, 3)


# Charts


@pytest.mark.parametrize("name", FAMILIES)
def test_zero_is_where_the_chart_begins_and_steps_stay_in_the_family(name):
    family, params = FAMILIES[name], somewhere(FAMILIES[name])
    geometry = family.geometry
    origin = geometry.origin(params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **EXACT), geometry.chart(params, origin), params)
    far = jax.tree.map(lambda leaf: jnp.full_like(leaf, -30.0), origin)
    assert np.isfinite(family.entropy(geometry.chart(params, far)))


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "low-rank"])
def test_in_the_chart_the_fisher_metric_is_the_identity(name):
    """The Hessian of the Kullback-Leibler divergence of two Gaussians, by automatic differentiation."""
    family, params = FAMILIES[name], somewhere(FAMILIES[name])
    origin, unravel = ravel_pytree(family.geometry.origin(params))

    def divergence(at):
        moved = family.geometry.chart(params, unravel(at))
        there = family.covariance_product(moved, jnp.eye(3))
        here = family.covariance_product(params, jnp.eye(3))
        step = family.mean(moved) - family.mean(params)
        inverse = jnp.linalg.inv(there)
        log_det = jnp.linalg.slogdet(there)[1] - jnp.linalg.slogdet(here)[1]
        return 0.5 * (jnp.trace(inverse @ here) + step @ inverse @ step - 3 + log_det)

    metric = jax.jit(jax.hessian(divergence))(origin)
    used = np.flatnonzero(np.diag(metric))  # not the entries above the diagonal
    assert used.size == family.num_params
    np.testing.assert_allclose(metric[np.ix_(used, used)], np.eye(used.size), atol=1e-9)


# Steps


def matrix(eigenvalues):
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(len(eigenvalues),) * 2))[0]
    return jnp.asarray(rotation * np.asarray(eigenvalues) @ rotation.T)


def test_inside_the_region_the_step_is_that_of_newton():
    hessian, grad = matrix([-1.0, -2.0, -5.0]), jnp.array([1.0, -0.3, 0.2])
    found = trust_step(grad, lambda v: hessian @ v, jnp.asarray(100.0), jnp.asarray(1e-12))
    expected = jnp.linalg.solve(-hessian, grad)
    assert bool(found.is_solved)
    assert int(found.products) <= 4
    np.testing.assert_allclose(found.step, expected, rtol=1e-9)
    np.testing.assert_allclose(found.gain, 0.5 * grad @ expected, rtol=1e-9)


@pytest.mark.parametrize("eigenvalues", [[-1.0, -2.0, -5.0], [-1.0, 2.0, -0.1], [0.0, 0.0, 0.0]])
def test_elsewhere_it_ends_at_the_boundary_and_predicts_its_gain(eigenvalues):
    hessian, grad = matrix(eigenvalues), jnp.array([1.0, -0.3, 0.2])
    found = trust_step(grad, lambda v: hessian @ v, jnp.asarray(0.1), jnp.asarray(1e-12))
    assert not bool(found.is_inside)
    np.testing.assert_allclose(jnp.linalg.norm(found.step), 0.1, rtol=1e-9)
    np.testing.assert_allclose(found.gain, grad @ found.step + 0.5 * found.step @ hessian @ found.step, rtol=1e-9)
    assert float(found.gain) >= 0.99 * float(0.1 * jnp.linalg.norm(grad) - 0.5 * 0.01 * 5), (
        "no less than steepest ascent"
    )


# The ELBO on common random numbers


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "low-rank"])
def test_for_a_quadratic_log_density_some_draws_are_exact(name):
    linear, function = quadratic()
    family, params = FAMILIES[name], somewhere(FAMILIES[name])
    exact, sampled = ExactElbo(quell.Problem(linear, family)), CommonDraws.of(quell.Problem(function, family))
    draws = some_draws(sampled, 2)
    found, expected = (eqx.filter_jit(one.around)(params, draws) for one in (sampled, exact))
    np.testing.assert_allclose(found.value, expected.value, **EXACT)
    np.testing.assert_allclose(expected.value, quell.exact_elbo(quell.Problem(linear, family), params), **EXACT)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-9), found.grad, expected.grad)
    jax.tree.map(lambda x: np.testing.assert_allclose(x, 0.0, atol=1e-9), found.noise)
    vector = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=float)).reshape(leaf.shape), expected.grad)
    one, two = (eqx.filter_jit(objective.product(params, draws))(vector) for objective in (sampled, exact))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-8), one, two)


def blocks_of_seeds(num_seeds, num_blocks, pairs):
    """Blocks of three coordinates, for each seed."""

    def of_seed(seed):
        noise = common_noise(quell.MeanField(3), pairs, Draws(seed, jnp.int32(num_blocks), jnp.int32(1)), jnp.float64)
        return jax.vmap(noise)(jnp.arange(num_blocks))

    return jax.jit(jax.vmap(of_seed))(jnp.arange(num_seeds, dtype=jnp.uint32))


def assert_on_average(values, expected):
    """Of the first axis, up to four standard errors."""
    error = jnp.std(values, axis=0) / jnp.sqrt(len(values))
    assert jnp.all(jnp.abs(jnp.mean(values, axis=0) - expected) < 4 * error + 1e-9)


@pytest.mark.parametrize("pairs", [4, 6, 32], ids=["by coordinate", "just whitened", "whitened"])
def test_blocks_have_the_moments_of_the_normal_distribution(pairs):
    """Second moments exactly: in each block, or of each coordinate in all even and in all odd blocks; fourth ones on
    average."""
    blocks = blocks_of_seeds(5_000, 5, pairs)
    assert blocks.shape[2] == 2 * pairs
    np.testing.assert_allclose(jnp.mean(blocks, axis=2), 0.0, atol=1e-12)
    if pairs > 4:
        seconds = jnp.einsum("kbsi,kbsj->kbij", blocks, blocks) / blocks.shape[2]
        np.testing.assert_allclose(seconds, jnp.broadcast_to(jnp.eye(3), seconds.shape), atol=1e-12)
    else:
        assert jnp.std(jnp.mean(blocks**2, axis=2)) > 0.1, "those of a block are not"
    for parity in range(2):
        np.testing.assert_allclose(jnp.mean(blocks[:, parity::2] ** 2, axis=(1, 2)), 1.0, atol=1e-12)
    fourths = jnp.einsum("kbsi,kbsj->kij", blocks**2, blocks**2) / (5 * blocks.shape[2])
    assert_on_average(fourths, jnp.ones((3, 3)) + 2 * jnp.eye(3))


@pytest.mark.parametrize("large", [2**20, 2])
def test_coordinates_are_independent_of_each_other(large, monkeypatch):
    """Also where noise is drawn pair by pair, by keys that are derived of that of a block."""
    monkeypatch.setattr(importlib.import_module("quell.families.location_scale"), "LARGE_DRAW", large)
    family = quell.MeanField(4_096 + (large == 2))  # another program

    def total(seed):
        noise = common_noise(family, 4, Draws(seed, jnp.int32(2), jnp.int32(1)), jnp.float64)
        return jnp.mean(jnp.sum(noise(jnp.int32(0)), axis=1) ** 2) / family.dim

    totals = jnp.stack([jax.jit(total)(jnp.uint32(seed)) for seed in range(50)])
    assert_on_average(totals, 1.0)


@pytest.mark.parametrize("num_blocks", [2, 16])
def test_sixth_moments_of_coordinates_come_near_the_normal_ones_with_the_blocks(num_blocks):
    num = num_blocks  # pairs in a half of all even blocks: two of each
    sixths = jnp.mean(blocks_of_seeds(5_000, num_blocks, 4) ** 6, axis=(1, 2))
    assert_on_average(sixths, 15 * num * (num + 6) / ((num + 2) * (num + 4)))


@pytest.mark.parametrize("lost", [0, 1, 40], ids=["all draws", "one draw lost", "too many lost"])
@pytest.mark.parametrize(
    ("name", "pairs"), [pytest.param("mean-field", 32, marks=pytest.mark.slow), ("full-rank", 32), ("mean-field", 4)]
)
def test_value_gradient_and_noise_are_those_of_all_draws_at_once(name, pairs, lost):
    """With a log density that is not finite beyond a bound, against means over all draws."""
    family, params = FAMILIES[name], somewhere(FAMILIES[name])
    smooth = quell.Model(
        lambda z, y: -jnp.log1p((y - jnp.sum(jnp.sin(z))) ** 2), quell.NormalPrior(), jnp.arange(4.0), 3
    )
    num = 96 // pairs
    seen = Draws(jnp.uint32(5), jnp.int32(num), jnp.int32(1))
    noise = jnp.concatenate([common_noise(family, pairs, seen, jnp.float64)(jnp.int32(one)) for one in range(num)])
    firsts = jnp.sort(jax.vmap(lambda one: family.sample(params, one))(noise)[:, 0])
    bound = 0.5 * (firsts[-lost] + firsts[-lost - 1]) if lost else jnp.inf

    def log_likelihood(z, y):
        return jnp.where(z[0] > bound, jnp.inf, -jnp.log1p((y - jnp.sum(jnp.sin(z))) ** 2))

    objective = CommonDraws(
        quell.Problem(quell.Model(log_likelihood, quell.NormalPrior(), jnp.arange(4.0), 3), family), pairs, 4, True
    )
    assert objective.pieces > 1 or pairs == 4
    found = eqx.filter_jit(objective.around)(params, some_draws(objective, num))
    is_there = jax.vmap(lambda one: family.sample(params, one))(noise)[:, 0] < bound
    signs = jnp.repeat(1.0 - 2.0 * (jnp.arange(num) % 2), len(noise) // num)
    origin = family.geometry.origin(params)

    def mean(at, weights):
        there = family.geometry.chart(params, at)
        terms = jax.vmap(lambda one: smooth.log_joint(family.sample(there, one)) + family.entropy(there))(noise)
        return jnp.sum(jnp.where(is_there, weights * terms, 0.0)) / jnp.sum(is_there)

    np.testing.assert_allclose(found.value, mean(origin, 1.0) if lost <= 1 else jnp.nan, **EXACT)
    np.testing.assert_allclose(found.lost, lost / len(noise), **EXACT)
    for one, weights in ((found.grad, 1.0), (found.noise, signs)):
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-11), one, jax.grad(mean)(origin, weights))
    if not lost:
        vector = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=float)).reshape(leaf.shape), origin)
        expected = jax.jvp(lambda at: jax.grad(mean)(at, 1.0), (origin,), (vector,))[1]
        product = eqx.filter_jit(objective.product(params, some_draws(objective, num)))(vector)
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=1e-11), product, expected)


@pytest.mark.parametrize("num", [1, 31, 32, 75])
def test_log_joints_in_pieces_are_those_of_each_point(num):
    objective = CommonDraws.of(quell.Problem(quadratic()[1], FAMILIES["mean-field"]))
    points = jax.random.normal(jax.random.key(0), (num, 3))
    expected = [objective.problem.model.log_joint(point) for point in points]
    np.testing.assert_allclose(objective.log_joints(points), expected, **EXACT)


@pytest.mark.parametrize("name", ["mean-field", "low-rank"])
def test_the_product_is_the_derivative_of_the_gradient(name):
    model = quell.Model(
        lambda z, y: -jnp.log1p((y - jnp.sum(jnp.sin(z))) ** 2), quell.NormalPrior(), jnp.arange(4.0), 3
    )
    family, params = FAMILIES[name], somewhere(FAMILIES[name])
    smooth = CommonDraws.of(quell.Problem(model, family))
    draws = some_draws(smooth, 3)
    vector = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=float)).reshape(leaf.shape), params)
    rough = CommonDraws(smooth.problem, smooth.pairs, smooth.few, False)
    one, two = (eqx.filter_jit(objective.product(params, draws))(vector) for objective in (smooth, rough))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=0.02), one, two)


@pytest.mark.slow
def test_the_gap_is_the_difference_to_the_optimum():
    linear, function = quadratic()
    family = quell.FullRank(3)
    best = quell.fit(linear, family, tolerance=1e-9, key=jax.random.key(0))
    near = best.params._replace(loc=best.params.loc + 0.01)
    problem = quell.Problem(function, family)
    exact = best.elbo().value - float(quell.exact_elbo(best.problem, near))
    gap = measure_gap(quell.Gradient(problem), near)
    np.testing.assert_allclose(gap.value, exact, rtol=1e-6)
    assert gap.standard_error < 1e-6
    assert measure_gap(quell.Gradient(quell.Problem(function, quell.Gamma(3))), quell.Gamma(3).init()) is None


# Fits


def skewed():
    """The optimum of a normal approximation is known: a one-dimensional integral."""
    return quell.Model(lambda z, h: -jnp.exp(z[0]) * h, quell.NormalPrior(0.0, 3.0), jnp.array([0.5, 1.0, 0.3]), 1)


def skewed_elbo(params):
    mean, log_scale = params.loc[0], params.scale[0]
    variance = jnp.exp(2 * log_scale)
    prior = -0.5 * (mean**2 + variance) / 9 - jnp.log(3.0) - 0.5 * jnp.log(2 * jnp.pi)
    return -1.8 * jnp.exp(mean + variance / 2) + prior + log_scale + 0.5 * (1 + jnp.log(2 * jnp.pi))


def best_of(near):
    """The optimum, by Newton's method on the exact ELBO."""
    flat, unravel = ravel_pytree(near)

    def elbo(at):
        return skewed_elbo(unravel(at))

    step = jax.jit(lambda at: at - jnp.linalg.solve(jax.hessian(elbo)(at), jax.grad(elbo)(at)))
    for _ in range(20):
        flat = step(flat)
    return unravel(flat)


def test_a_fit_ends_by_itself_and_its_gap_is_right():
    result = quell.fit(skewed(), quell.MeanField(1), key=jax.random.key(0))
    assert result.status is quell.Status.CONVERGED
    assert result.choice.base == "common draws"
    left = float(skewed_elbo(best_of(result.params)) - skewed_elbo(result.params))
    assert 0 <= left < 0.01
    assert abs(left - result.gap.value) < 3 * result.gap.standard_error
    assert result.history.num_steps < 60


@pytest.mark.parametrize("double", [True, False])
def test_a_far_optimum_costs_the_logarithm_of_its_distance(double):
    noise = np.random.default_rng(0).normal(size=50)
    with jax.enable_x64(double):
        for offset, most in ((1e4, 30), *([(1e6, 40)] if double else [])):  # in single precision it has a warning
            prior = quell.NormalPrior(scale=1e9)
            model = quell.gaussian_regression(np.ones((50, 1)), offset + noise, noise=1.0, prior=prior)
            result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
            assert result.status is quell.Status.CONVERGED
            assert result.history.num_steps <= most
            np.testing.assert_allclose(result.mean[0], offset + noise.mean(), rtol=1e-6)
        again = quell.fit(model, quell.MeanField(1), params=result.params, key=jax.random.key(0))
        assert again.status is quell.Status.CONVERGED


def test_a_fit_far_from_the_optimum_has_no_finite_gap_and_says_so():
    model = quell.Model(lambda z, x: -jnp.log1p((z[0] - x) ** 2), quell.NormalPrior(0.0, 100.0), jnp.full(100, 20.0), 1)
    result = quell.fit(model, quell.MeanField(1), optimizer=optax.adam(0.01), steps=20, key=jax.random.key(0))
    assert np.isinf(result.gap.value)
    assert any("has not converged" in text for text in result.warnings)


def test_linear_predictors_with_several_optima_have_several_starts():
    data = LinearData(jnp.ones((21, 1)), jnp.concatenate([jnp.full(8, 0.5), jnp.full(13, -1.8)]))
    model = LinearPredictor(data, quell.NormalPrior(), lambda t, y: -jnp.log1p(((y - t) / 0.05) ** 2))
    result = quell.fit(model, quell.MeanField(1), khat=False, key=jax.random.key(0))
    np.testing.assert_allclose(result.mean[0], -1.8, atol=0.01)
    assert any("Other starts" in text for text in result.warnings)


def test_quadrature_that_draws_contradict_is_told():
    data = LinearData(jnp.ones((20, 1)), jnp.zeros(20))
    model = LinearPredictor(data, quell.NormalPrior(0.0, 10.0), lambda t, y: -(0.4 / 20) * jnp.log1p((t / 1e-4) ** 2))
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert any("draws say" in text for text in result.warnings)


@pytest.mark.slow
def test_a_fit_whose_gap_cannot_be_measured_says_so(monkeypatch):
    monkeypatch.setattr(CommonDraws, "of", lambda problem, **_: None)
    result = quell.fit(skewed(), quell.MeanField(1), steps=10, key=jax.random.key(0))
    assert result.status is quell.Status.COMPLETED
    assert any("could not be measured" in text for text in result.warnings)


def test_a_gap_that_noise_hides_is_told(monkeypatch):
    monkeypatch.setattr(importlib.import_module("quell.fit.common_draws"), "MOST_DRAWS", 128)
    model = quell.Model(lambda z, x: -jnp.cosh(2 * z[0]) + x * jnp.sin(5 * z[0]), quell.NormalPrior(), jnp.ones(1), 1)
    result = quell.fit(model, quell.MeanField(1), tolerance=1e-6, khat=False, key=jax.random.key(0))
    assert result.status is quell.Status.NOT_CONVERGED
    assert any("too few to be told from noise" in text for text in result.warnings)


def network(units=6):
    """A network of one hidden layer, whose draws a full-rank Gaussian can fit one by one."""
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-2, 2, size=(200, 2))
    targets = np.sin(1.5 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.3 * rng.normal(size=200)

    def log_likelihood(z, rows):
        x, y = rows
        first, shift, second = z[: 2 * units].reshape(2, units), z[2 * units : 3 * units], z[3 * units : 4 * units]
        return -0.5 * ((y - jnp.tanh(x @ first + shift) @ second) / 0.3) ** 2

    return quell.Model(log_likelihood, quell.NormalPrior(), (jnp.asarray(inputs), jnp.asarray(targets)), 4 * units)


@pytest.mark.slow
def test_where_newton_steps_fit_their_draws_sampled_gradients_take_over(monkeypatch):
    plans = []
    run = attempts.run_plan

    def runs(plan, bar):
        plans.append(run(plan, bar)[0])
        return plans[-1:]

    monkeypatch.setattr(attempts, "run_plan", runs)
    model = network()
    result = quell.fit(model, quell.FullRank(model.dim), key=jax.random.key(0))
    newton, sampled = plans
    assert (newton.choice.base, newton.status) == ("common draws", quell.Status.NOT_CONVERGED)
    assert newton.history.num_steps < 200, "it is hopeless, and that is seen"
    assert result.choice.base == sampled.choice.base == "sampled"
    assert result.sampled_elbo.value > newton.sampled_elbo.value + 10
    assert result.num_gradients == newton.num_gradients + sampled.num_gradients
    np.testing.assert_allclose(result.seconds.total, newton.seconds.total + sampled.seconds.total, rtol=1e-2)
    assert any("has not converged" in text for text in result.warnings)
    assert result.choice.reason.startswith("Newton steps on draws gave up. ")


def test_a_fit_with_a_checkpoint_does_not_give_up_for_another(tmp_path):
    model, path = (
        quell.Model(lambda z, x: -0.5 * (x - jnp.tanh(z[0])) ** 2, quell.NormalPrior(), jnp.ones(3), 1),
        tmp_path,
    )
    options = quell.FitOptions(checkpoint=quell.Checkpoint(path / "fit.quell"))
    plans = [
        FitPlan.of(each, model, quell.MeanField(1), jax.random.key(0), None) for each in (quell.FitOptions(), options)
    ]
    assert [plan.algorithm.gives_up for plan in plans] == [True, False]


def test_leaps_find_a_log_concave_optimum_in_few_gradients(key):
    rng = np.random.default_rng(0)
    model = quell.logistic_regression(rng.normal(size=(60, 5)), rng.integers(0, 2, 60))
    result = quell.fit(model, quell.FullRank(5), key=key)
    assert result.status is quell.Status.CONVERGED
    assert result.num_gradients < 40


def test_where_steps_run_out_the_fit_says_so():
    result = quell.fit(skewed(), quell.MeanField(1), steps=4, key=jax.random.key(0))
    assert result.status is quell.Status.NOT_CONVERGED
    assert any("has not converged" in text and "`steps`" in text for text in result.warnings)
    assert all(text in repr(result) for text in result.warnings)


@pytest.mark.slow
def test_a_start_outside_of_the_support_is_left():
    model = quell.Model(
        lambda z, x: jnp.log(z[0]) - 50.0 * (z[0] - x) ** 2, quell.NormalPrior(0.0, 3.0), jnp.array([1.0, 1.1, 0.9]), 1
    )
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert result.status is quell.Status.CONVERGED
    assert 0.9 < float(result.mean[0]) < 1.1
    nowhere = quell.Model(lambda z, x: jnp.log(-1.0 - z[0] ** 2) * x, quell.NormalPrior(), jnp.ones(3), 1)
    lost = quell.fit(nowhere, quell.MeanField(1), key=jax.random.key(0))
    assert lost.status is quell.Status.NOT_CONVERGED
    assert any("not finite" in text for text in lost.warnings)


def two_modes(second):
    """A mixture of two normal densities apart from each other, the second with a weight that is so much larger."""

    def log_likelihood(z, x):
        heights = jnp.stack([-0.5 * jnp.sum((z - 3.0) ** 2), second - 0.5 * jnp.sum((z + 3.0) ** 2)])
        return jax.scipy.special.logsumexp(heights) + 0.0 * x

    return quell.Model(log_likelihood, quell.NormalPrior(0.0, 100.0), jnp.zeros(1), 2)


@pytest.mark.slow
def test_several_optima_are_told():
    for seed in range(3):
        result = quell.fit(two_modes(0.0), quell.MeanField(2), key=jax.random.key(seed))
        assert result.status is quell.Status.CONVERGED
        assert result.starts_differ
        assert any("other optima" in text for text in result.warnings)
    given = quell.fit(two_modes(0.0), quell.MeanField(2), params=result.params, key=jax.random.key(0))
    assert not given.starts_differ, "where parameters are given, the fit goes on from those"


@pytest.mark.slow
def test_the_best_of_several_optima_is_taken():
    for seed in range(3):
        result = quell.fit(two_modes(3.0), quell.MeanField(2), key=jax.random.key(seed))
        np.testing.assert_allclose(result.mean, -3.0, atol=0.05)


@pytest.mark.slow
def test_a_fit_that_ends_among_its_starts_returns_the_best_of_them():
    options = {"key": jax.random.key(0), "tolerance": 0.01}
    ends = [quell.fit(two_modes(5.0), quell.MeanField(2), steps=steps, **options) for steps in range(8, 24, 3)]
    elbos = [fit.elbo().value for fit in ends]
    assert all(after > before - 0.2 for before, after in itertools.pairwise(elbos)), elbos


@pytest.mark.slow
def test_several_fits_are_each_its_own():
    keys = jax.random.split(jax.random.key(3), 2)
    several = quell.fit_many(skewed(), quell.MeanField(1), num_fits=2, key=jax.random.key(3))
    for key, one in zip(keys, several, strict=True):
        alone = quell.fit(skewed(), quell.MeanField(1), key=key)
        assert one.status is alone.status is quell.Status.CONVERGED
        np.testing.assert_allclose(one.params.loc, alone.params.loc, rtol=1e-6)


@pytest.mark.slow
def test_a_given_optimiser_has_its_gap_measured():

    options = {"optimizer": optax.adam(0.05), "steps": 5, "key": jax.random.key(0)}
    short = quell.fit(skewed(), quell.MeanField(1), **options)
    assert short.status is quell.Status.COMPLETED
    assert short.gap.value > 0.1
    assert any("has not converged" in text for text in short.warnings)
    long = quell.fit(skewed(), quell.MeanField(1), **(options | {"steps": 2000}))
    assert 0.05 < long.gap.value < 0.5, "a constant rate leaves noise"
    exact = skewed_elbo(best_of(long.params)) - skewed_elbo(long.params)
    np.testing.assert_allclose(long.gap.value, exact, rtol=1.0, err_msg="to second order")


def test_separable_data_are_told():
    features, prior = np.array([[1.0, 2], [1, 1], [1, -1], [1, -3]]), quell.NormalPrior(scale=100.0)
    apart, mixed = (quell.logistic_regression(features, labels, prior=prior) for labels in ([1, 1, 0, 0], [1, 0, 1, 0]))
    told = [quell.fit(model, quell.FullRank(2), key=jax.random.key(0)).warnings for model in (apart, mixed)]
    assert ["separable" in " ".join(texts) for texts in told] == [True, False]


@pytest.mark.slow
def test_a_scale_that_rounding_hides_is_told():
    with jax.enable_x64(False):
        model = quell.gaussian_regression(
            np.ones((50, 1)), np.full(50, 3e6) + np.arange(50), noise=1.0, prior=quell.NormalPrior(scale=1e9)
        )
        result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
        assert any("jax_enable_x64" in text for text in result.warnings)
        assert result.history.num_steps < 100


@pytest.mark.parametrize(("is_double", "gap", "asks"), [(False, 1e-6, True), (False, 0.3, False), (True, 1e-6, False)])
def test_a_gap_that_rounding_explains_asks_for_double_precision(is_double, gap, asks):
    with jax.enable_x64(is_double):
        result = quell.fit(quadratic()[0], quell.MeanField(3), key=jax.random.key(0))
        short = dataclasses.replace(result, status=quell.Status.NOT_CONVERGED, measured_gap=Estimate(gap, 0.0))
        (text,) = (text for text in short.warnings if "left to gain" in text)
    assert ("jax_enable_x64" in text) == asks
    assert "`tolerance`" in text


def test_where_data_are_elsewhere_a_gap_is_told_without_a_computation(monkeypatch):
    """Which all processes would have to join, and this one may be the only one that prints."""
    with jax.enable_x64(False):
        result = quell.fit(quadratic()[0], quell.MeanField(3), key=jax.random.key(0))
        short = dataclasses.replace(result, status=quell.Status.NOT_CONVERGED, measured_gap=Estimate(1e-6, 0.0))
        for name, value in (("is_here", False), ("final_elbo", None)):
            monkeypatch.setattr(quell.FitResult, name, value)
        (text,) = (text for text in short.warnings if "left to gain" in text)
    assert "jax_enable_x64" not in text


def ended(newton):
    """Last state of a fit, and how many steps it took, at most 100."""
    state, step = newton.init(), eqx.filter_jit(newton.step)
    for number in range(100):
        state, _ = step(jax.random.key(number), state)
        if newton.has_ended(state):
            break
    return state, number + 1


class Deceiving(ExactElbo):
    """An ELBO that falls wherever its gradient leads."""

    def _summands(self, params, at):
        slope = jnp.sum(at.loc)
        return [jax.lax.stop_gradient(-1e3 * jnp.sum(params.loc**2) - slope), slope]


def test_where_no_step_gains_anything_the_fit_ends():
    """Where there are no draws, other ones are no way out."""
    problem = quell.Problem(quadratic()[1], quell.MeanField(3))
    state, _ = ended(Newton(quell.Gradient(problem), Deceiving(problem), 0.01))
    assert state.optimizer.has_given_up
    assert not state.optimizer.has_converged


class Rounded(ExactElbo):
    """An ELBO whose last digits are lost, beyond the rounding of its sum."""

    def _summands(self, params, at):
        digits = 1e-3 * jnp.sin(1e7 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)))
        moved = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(at))
        return [*super()._summands(params, at), jax.lax.stop_gradient(digits + 1e-3 * jnp.sin(1e7 * moved))]


def test_rounding_does_not_hide_that_nothing_is_left_to_gain():
    problem = quell.Problem(quadratic()[0], quell.MeanField(3))
    state, steps = ended(Newton(quell.Gradient(problem), Rounded(problem), 0.01))
    assert state.optimizer.has_converged
    assert steps < 20


@pytest.mark.parametrize(("size", "is_taken"), [(1.0, False), (1e4, True)])
def test_a_gain_within_the_rounding_of_large_summands_is_taken_on_trust(size, is_taken):
    """The ELBO is small where they cancel, and no rounding of its own would explain what it loses."""
    family, unit = quell.MeanField(1), jnp.finfo(float).eps
    zero, one = jnp.zeros(()), jnp.ones(())
    here = LocalElbo(zero, family.init(), family.init(), zero, size * one)
    solved = TrustStep.of_nothing(family.init())._replace(slope=4 * unit * one, gain=2 * unit * one)
    lower = here._replace(value=-1e4 * unit * one)
    found = line_search(
        lambda _: (family.init(), lower), family.init(), here, solved, jnp.asarray(False), jnp.asarray(1)
    )
    assert bool(found.is_better) is is_taken


def test_the_size_of_an_elbo_is_that_of_its_summands():
    """Constants that cancel, as logarithms of scales and entropies of thousands of coordinates do."""
    model = quell.from_numpyro(lambda: numpyro.sample("z", dist.Normal(2.0, 1e-3).expand([50]).to_event(1)))
    problem = exactly(quell.Problem(model, quell.MeanField(50)))
    params = problem.family.init()._replace(loc=jnp.full(50, 2.0), scale=jnp.full(50, np.log(1e-3)))
    found = ExactElbo(problem).around(params, Draws(*jnp.zeros(3, jnp.int32)))
    np.testing.assert_allclose(found.value, quell.exact_elbo(problem, params), **EXACT)
    np.testing.assert_allclose(found.value, 0.0, atol=1e-6)
    entropy = 50 * (0.5 + 0.5 * np.log(2 * np.pi) + np.log(1e-3))
    assert found.size > 2 * abs(entropy) * (1 - 1e-12)


class Coarse(ExactElbo):
    """A sum of numbers so large that its last nats are unknown, whose gradient is off by less, elsewhere by another."""

    def around(self, params, draws):
        found = super().around(params, draws)
        lost = 0.3 * jnp.sin(1e7 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)) + jnp.arange(3.0))
        return found._replace(size=found.size + 1e17, grad=found.grad._replace(loc=found.grad.loc + lost))


def test_a_gap_that_only_rounding_keeps_ends_the_fit():
    """It would be judged again and again, until the steps are over."""
    problem = quell.Problem(quadratic()[0], quell.MeanField(3))
    state, steps = ended(Newton(quell.Gradient(problem), Coarse(problem), 1e-6))
    assert state.optimizer.has_given_up
    assert not state.optimizer.has_converged
    assert 1e-6 < state.optimizer.gap < 1.0
    assert steps < 40


@pytest.mark.parametrize(("last", "wanted"), [(40, 3), (60, 0)])
def test_no_other_start_is_tried_that_would_take_the_search_beyond_its_bound(last, wanted):
    """Of 256 gradients: the first has taken 100, and the last so many."""
    family = quell.MeanField(2)
    nowhere = LocalElbo(jnp.zeros(()), family.init(), family.init(), *jnp.zeros(2))
    starts, found = Starts.of(family.init(), nowhere, 6), jnp.asarray(True)
    first = starts.add(family.init(), nowhere, jnp.asarray(100.0), 1 / 256, 6, found, ~found)
    assert first.wanted == 3
    after = first.add(family.init(), nowhere, jnp.asarray(100.0 + last), 1 / 256, 6, found, ~found)
    assert after.wanted == wanted


def test_a_search_that_is_over_is_not_said_to_be_too_long():
    family = quell.MeanField(2)
    nowhere = LocalElbo(jnp.zeros(()), family.init(), family.init(), *jnp.zeros(2))
    found = jnp.asarray(True)
    after = Starts.of(family.init(), nowhere, 1).add(family.init(), nowhere, jnp.ones(()), 1.0, 1, found, ~found)
    assert after.wanted == 1


@pytest.mark.parametrize(("largest", "is_alone"), [(2**30, False), (1.0, True)])
@pytest.mark.parametrize("fits", [1, 2])
@pytest.mark.parametrize("bound", ["LARGEST_SEARCH", "LARGEST_EXACT_SEARCH"])
def test_a_start_that_stayed_alone_is_told(bound, largest, is_alone, fits, monkeypatch):
    if bound == "LARGEST_EXACT_SEARCH":
        monkeypatch.undo()  # so that the structure is read
    monkeypatch.setattr(importlib.import_module("quell.fit.common_draws"), bound, largest)
    model = quell.Model(lambda z, y: -jnp.log1p((z[0] - y) ** 2), quell.NormalPrior(), jnp.arange(4.0), 1)
    for result in quell.fit_many(model, quell.MeanField(1), num_fits=fits, key=jax.random.key(0)):
        assert result.starts_differ is (None if is_alone else False)
        assert any("One start alone" in text for text in result.warnings) is is_alone


@pytest.mark.parametrize("is_known", [True, False], ids=["exact", "on draws"])
def test_the_share_of_a_search_that_a_gradient_is(is_known):
    problem = quell.Problem(quadratic()[0], quell.MeanField(3))
    if is_known:
        objective = ExactElbo(exactly(problem))
        size = objective.problem.expectation.num_evaluations + VALUES_OF_PARAM * 6
        assert objective.search_share == size / LARGEST_EXACT_SEARCH
    else:
        assert CommonDraws.of(problem).search_share == 7 / LARGEST_SEARCH


def mixture(num):
    """Of two normal distributions, the narrow one of which some starts give to the wrong half of the data."""
    rng = np.random.default_rng(0)
    y = np.where(rng.random(num) < 0.65, rng.normal(-1.0, 1.0, num), rng.normal(1.5, 0.6, num))

    def log_likelihood(z, y):
        narrow, wide = jnp.array([0.6, 1.0]) * jnp.exp(0.05 * z[3:5])
        logs = [-0.5 * ((y - mean) / scale) ** 2 - jnp.log(scale) for mean, scale in ((z[1], narrow), (z[2], wide))]
        return jnp.logaddexp(logs[0] + jax.nn.log_sigmoid(z[0]), logs[1] + jax.nn.log_sigmoid(-z[0]))

    return quell.Model(log_likelihood, quell.NormalPrior(), jnp.asarray(y), 5)


@pytest.mark.slow
def test_some_thousand_rows_do_not_keep_other_starts_from_being_tried():
    """With the first start alone this fit ended 90 nats below, and said that it had converged."""
    result = quell.fit(mixture(6_000), quell.FullRank(5), key=jax.random.key(1))
    assert result.status is quell.Status.CONVERGED
    assert result.starts_differ
    np.testing.assert_allclose(result.final_elbo.value, -4930.1, atol=0.1)


class Vast(ExactElbo):
    """A sum of numbers of which a unit of rounding is so large, and wrong by so many of them at a distance of 0.01."""

    unit: float = 0.0
    start: Any = None
    most: float = 10.0

    def around(self, params, draws):
        found = super().around(params, draws)
        wrong = self.most * self.unit * jnp.linalg.norm(params.loc - self.start.loc) / 0.01
        return found._replace(value=found.value + wrong, size=jnp.asarray(self.unit / jnp.finfo(found.value.dtype).eps))


@pytest.mark.parametrize(
    ("units", "halves", "most", "is_taken"),
    [
        (0.5, None, 10, True),
        (5, None, 10, True),
        (20, None, 10, False),
        (5, True, 10, True),
        (5, False, 10, False),
        (0.5, False, 10, False),
        (5, None, -30, False),
    ],
    ids=["below one", "five", "twenty", "halves", "does not halve", "is stalled", "falls by more than rounding"],
)
def test_a_judged_step_of_some_units_of_rounding_is_taken_whole_if_the_last_one_halved_the_gap(
    units, halves, most, is_taken
):
    """Though it leaves the region, and though the ELBO seems to rise by more than is predicted."""
    family = quell.MeanField(3)
    problem = exactly(quell.Problem(quadratic()[0], family))
    best = quell.fit(quadratic()[0], family, key=jax.random.key(0), tolerance=1e-9).params
    start = best._replace(loc=best.loc.at[0].add(0.01))
    gap = float(quell.exact_elbo(problem, best) - quell.exact_elbo(problem, start))
    newton = Newton(quell.Gradient(problem), Vast(problem, unit=gap / units, start=start, most=most), 1e-9)
    begun = newton.init(start)
    here = newton.objective.around(start, begun.optimizer.draws)
    judged = jnp.inf if halves is None else gap * (2.1 if halves else 1.9)
    at_judgement = begun.optimizer._replace(
        phase=jnp.int32(Phase.JUDGE), here=here, radius=jnp.asarray(1e-3), judged=jnp.asarray(judged)
    )
    after, _ = eqx.filter_jit(newton.step)(jax.random.key(0), dataclasses.replace(begun, optimizer=at_judgement))
    now = after.optimizer
    np.testing.assert_allclose(now.judged, gap, rtol=1e-2)
    assert now.phase == (Phase.JUDGE if is_taken else Phase.MOVE)
    assert bool(now.has_given_up) is (units < 1 and not is_taken)
    np.testing.assert_allclose(after.params.loc, best.loc if is_taken else start.loc, atol=1e-4)
    assert is_taken or now.radius == 1e-3, "the step was that of no region"


NOTHING, SAME, OTHER = (-5.0, False, False), (0.0, True, False), (0.0, True, True)
"""Ends of starts: the ELBO, whether it is that of an optimum, and of another one than the best before."""


@pytest.mark.parametrize(
    ("ends", "wanted", "differ"),
    [
        ([SAME, SAME, SAME], [3, 3, 3], False),
        ([SAME, NOTHING, SAME, NOTHING, SAME], [3, 4, 4, 5, 5], False),
        ([SAME, (1.0, True, True), (1.0, True, False), (1.0, True, False)], [3, 4, 4, 4], True),
        ([SAME, SAME, (1.0, True, True), OTHER, (1.0, True, False)], [3, 3, 5, 6, 6], True),
        ([SAME, (1.0, False, False), OTHER, (2.0, True, True)], [3, 5, 6, 6], True),
        ([SAME, (1.0, False, False), OTHER], [3, 5, 6], False),
        ([NOTHING, (1.0, True, True), SAME], [4, 4, 4], False),
    ],
    ids=[
        "agree",
        "some find nothing",
        "the first is alone",
        "the best is found late",
        "the best is no optimum",
        "nor is it",
        "the first is none",
    ],
)
def test_starts_are_tried_until_three_have_found_the_best_optimum(ends, wanted, differ):
    family = quell.MeanField(2)
    nowhere = LocalElbo(jnp.zeros(()), family.init(), family.init(), *jnp.zeros(2))
    starts, seen = Starts.of(family.init(), nowhere, 6), []
    for value, found, differs in ends:
        here = nowhere._replace(value=jnp.asarray(value))
        starts = starts.add(family.init(), here, jnp.ones(()), 0.01, 6, jnp.asarray(found), jnp.asarray(differs))
        seen.append(int(starts.wanted))
    assert seen == wanted
    assert starts.differ == differ


@pytest.mark.parametrize(("dip", "wanted", "differ"), [(1.0, 5, True), (0.0, 3, False)], ids=["a dip", "none"])
def test_of_two_optima_as_high_as_each_other_either_is_the_best(dip, wanted, differ):
    """Those that have found the one say nothing about the other, which is behind a dip."""
    problem = quell.Problem(quadratic()[0], quell.MeanField(3))
    newton = Newton(quell.Gradient(problem), ExactElbo(problem), 0.01, 6)
    params, no = problem.family.init(), jnp.asarray(False)
    state = newton.init().optimizer
    starts = state.starts._replace(ended=jnp.asarray(2), agreeing=jnp.asarray(2), found=~no)
    before = state._replace(phase=jnp.asarray(Phase.COMPARE), starts=starts)
    after = before._replace(here=state.here._replace(value=starts.here.value - dip))
    _, found = newton._between_starts(jax.random.key(0), params, before, after, no, no, jnp.asarray(0.1))
    assert (int(found.starts.wanted), bool(found.starts.differ)) == (wanted, differ)


@pytest.mark.parametrize("factor", [WIDER, NARROWER], ids=["few coordinates", "many coordinates"])
@pytest.mark.parametrize("name", FAMILIES)
def test_other_starts_are_wider_or_narrower(name, factor, monkeypatch):
    monkeypatch.setattr(
        importlib.import_module("quell.fit.common_draws"), "LARGEST_WHITENED", 3 if factor == WIDER else 2
    )
    family = FAMILIES[name]
    objective = CommonDraws.of(quell.Problem(quadratic()[1], family))
    first, other = (family.gaussian(params) for params in (family.init(), other_scale(family, objective, float)))
    for one, two in zip(
        jax.tree.leaves(first._replace(mean=None)), jax.tree.leaves(other._replace(mean=None)), strict=True
    ):
        power = 2 if one.ndim == 1 else 1  # variances, and factors
        np.testing.assert_allclose(two, factor**power * one)


@pytest.mark.parametrize("largest_whitened", [2, 3], ids=["many coordinates", "few coordinates"])
def test_other_starts_climb_to_the_mode(monkeypatch, largest_whitened):
    """Though the density or its slope is not finite where many begin to climb; of few coordinates every other does."""
    monkeypatch.setattr(importlib.import_module("quell.fit.common_draws"), "LARGEST_WHITENED", largest_whitened)

    def log_likelihood(z, y):
        return jnp.where(z[2] < 0, jnp.nan, -0.5 * jnp.sum((z - y) ** 2, axis=-1) - 1e200 * jnp.maximum(-z[1] - 1.5, 0))

    model = quell.Model(log_likelihood, quell.NormalPrior(), jnp.array([[1.0, -2.0, 3.0]]), 3)
    family, mode = FAMILIES["mean-field"], jnp.array([0.5, -1.0, 1.5])
    objective = CommonDraws.of(quell.Problem(model, family))

    def locations(climbs, objective=objective):
        return [elsewhere(jax.random.key(seed), objective, family.init(), climbs).loc for seed in range(2)]

    def from_mode(locations):
        return np.abs(np.stack(locations) - mode).max()

    found = locations(jnp.asarray(True))
    np.testing.assert_allclose(found, jnp.broadcast_to(mode, (2, 3)), atol=0.05)
    assert not np.array_equal(*found)
    of_many = largest_whitened == 2
    assert bool(from_mode(locations(jnp.asarray(False))) < 0.05) is of_many, "of many coordinates all climb"
    beside = CommonDraws.of(quell.Problem(model, family), is_alone=False)
    assert bool(from_mode(locations(jnp.asarray(True), beside)) < 0.05) is of_many, "of fits side by side none"
    assert [bool(climbs_after(jnp.asarray(ended))) for ended in range(5)] == [False, False, True, False, True]


def test_products_of_a_long_round_see_some_of_its_draws():
    problem = quell.Problem(quadratic()[1], quell.MeanField(3))
    seen = []

    class Watched(CommonDraws):
        def product(self, params, draws):
            jax.debug.callback(lambda blocks: seen.append(int(blocks)), draws.blocks)
            return super().product(params, draws)

    objective = CommonDraws.of(problem)
    watched = Watched(objective.problem, objective.pairs, objective.few, objective.is_smooth)
    newton = Newton(quell.Gradient(problem), watched, 0.01)
    state = newton.init()
    most = 2 * CURVATURE_BLOCKS  # two parameters a coordinate
    for blocks in (4, most, 10 * most):
        draws = Draws(jnp.asarray(1, jnp.uint32), jnp.asarray(blocks), jnp.asarray(watched.pieces))
        here = watched.around(state.params, draws)
        now = state.optimizer._replace(phase=jnp.asarray(Phase.MOVE, jnp.int32), draws=draws, here=here)
        after, _ = newton.step(jax.random.key(0), dataclasses.replace(state, optimizer=now))
        assert after.optimizer.draws.blocks == blocks
        assert after.optimizer.here.value > here.value
    jax.effects_barrier()
    assert seen == [4, most, most]


# What must be right, or told


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
def test_the_funnel_of_centred_eight_schools_is_climbed(double):
    with jax.enable_x64(double):
        args, options = jax.tree.map(np.asarray, (CENTRED.args, CENTRED.kwargs))  # each precision has its own arrays
        model = quell.from_numpyro(CENTRED.model, *args, **options)
        result = quell.fit(model, quell.FullRank(model.dim), key=jax.random.key(0))
        assert result.final_elbo.value > -33.0
        assert any("K-hat" in text for text in result.warnings), "a Gaussian is not what the posterior is"
        verdicts = [result.khat(jax.random.key(seed)).is_good for seed in range(5)]
        assert verdicts == [False] * 5


def test_every_key_says_that_a_cauchy_posterior_has_heavy_tails():
    model = quell.Model(lambda z, x: -jnp.log1p((z[0] - x) ** 2), quell.NormalPrior(0.0, 1e6), jnp.zeros(1), 1)
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert [result.khat(jax.random.key(seed)).is_good for seed in range(5)] == [False] * 5
    assert any("K-hat" in text for text in result.warnings)
    silent = quell.fit(model, quell.MeanField(1), khat=False, key=jax.random.key(0))
    assert silent.warnings == ()
    assert "k-hat" not in repr(silent)


@pytest.mark.slow
def test_gradients_that_are_not_finite_are_told():
    """The derivative of a root at negative numbers is no number, though the other branch is taken."""
    model = quell.Model(
        lambda z, x: jnp.where(z[0] > 0, -0.5 * jnp.sqrt(z[0]) ** 4, -0.5 * z[0] ** 2) + 0.0 * x,
        quell.NormalPrior(0.0, 3.0),
        jnp.zeros(1),
        1,
    )
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert result.status is quell.Status.NOT_CONVERGED
    assert any("The ELBO was not finite at" in text for text in result.warnings)


def test_draws_that_a_fit_leaves_out_are_told():
    """The density is finite everywhere, and its gradient is NaN in a tail: the slope of a root times zero."""
    model = quell.Model(
        lambda z, x: x * jnp.sin(z[0]) + 1e-3 * jnp.sqrt(jnp.maximum(2.9 - z[0], 0.0)),
        quell.NormalPrior(),
        jnp.ones(1),
        1,
    )
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert result.status is quell.Status.CONVERGED
    assert 0 < result.lost_draws < 0.01
    assert any("left out" in text for text in result.warnings)


def test_a_lost_draw_is_left_out_wherever_it_falls():
    """Among many data a piece has one draw."""
    model = quell.Model(
        lambda z, x: jnp.where(z[0] > 1.5, jnp.nan, -1.0) + 0.0 * x, quell.NormalPrior(), jnp.zeros(140_000), 1
    )
    family = quell.MeanField(1)
    sampled = CommonDraws.of(quell.Problem(model, family))
    assert sampled.pieces == 2 * sampled.pairs
    params = family.init()
    params = params._replace(loc=jnp.zeros(1), scale=jnp.zeros(1))
    for seed in range(8):
        draws = some_draws(sampled, 2)._replace(seed=jnp.asarray(seed, jnp.uint32))
        value = float(eqx.filter_jit(sampled.around)(params, draws).value)
        assert np.isnan(value) or abs(value + 140_000) < 10


def test_directions_of_little_curvature_count_in_the_gap():
    precision = np.linalg.inv(np.array([[1.0, 0.9999], [0.9999, 1.0]]))
    model = quell.Model(
        lambda z, x: -0.5 * z @ jnp.asarray(precision) @ z + 0.0 * x, quell.NormalPrior(0.0, 1e6), jnp.zeros(1), 2
    )
    family = quell.MeanField(2)
    params = family.init()._replace(loc=jnp.full(2, 0.64), scale=-0.5 * jnp.log(jnp.diag(precision)))
    gap = measure_gap(quell.Gradient(quell.Problem(model, family)), params)
    np.testing.assert_allclose(gap.value, 0.5 * params.loc @ precision @ params.loc, rtol=1e-3)


@pytest.mark.slow
def test_natural_gradients_have_converged_only_where_the_gap_says_so():
    rng = np.random.default_rng(0)
    one = rng.normal(size=100)
    features = np.column_stack([one, one + 0.003 * rng.normal(size=100)])
    model = quell.gaussian_regression(features, one + rng.normal(size=100), noise=1.0)
    family = quell.MeanField(2)
    options = {"optimizer": quell.natural_gradient(quell.Problem(model, family)), "key": jax.random.key(0)}
    result = quell.fit(model, family, **options)
    best = quell.fit(model, family, tolerance=1e-9, key=jax.random.key(0))
    left = best.final_elbo.value - result.final_elbo.value
    assert result.status is quell.Status.CONVERGED
    assert left < 0.01
    np.testing.assert_allclose(result.gap.value, left, rtol=1e-3)


def test_a_checkpoint_of_another_tolerance_is_refused(tmp_path):
    first, again = (quell.Checkpoint(tmp_path / "fit.quell", resume=resume) for resume in (False, True))
    quell.fit(skewed(), quell.MeanField(1), tolerance=1.0, checkpoint=first, key=jax.random.key(0))
    with pytest.raises(quell.CheckpointError, match="tolerance"):
        quell.fit(skewed(), quell.MeanField(1), tolerance=1e-3, checkpoint=again, key=jax.random.key(0))


def test_where_an_average_is_asked_for_there_is_one():
    result = quell.fit(skewed(), quell.MeanField(1), average_from=0.5, steps=20, key=jax.random.key(0))
    assert result.choice.base == "sampled"


def test_draws_too_few_for_the_tails_are_told():
    """The fit and its last step as they are, and a model whose density falls off where its few draws do not reach."""
    result = quell.fit(skewed(), quell.MeanField(1), key=jax.random.key(0))
    history = eqx.tree_at(lambda one: one.elbo, result.history, result.history.elbo + 2.0)
    told = eqx.tree_at(lambda one: one.history, result, history).warnings
    assert any("on its own draws" in text for text in told)
    assert not any("on its own draws" in text for text in result.warnings)
