# SPDX-License-Identifier: Apache-2.0
"""Diagnostics: variances by block, contributions, costs, importance ratios and advice, exact where possible."""

import dataclasses
import itertools
import math
import os
import re
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import quell
import tolerances
from exact import exact_draw, gauss_hermite
from quell.core import estimate
from quell.diagnostics import advice, covariance, densities, ensembles, khat, plots, variance
from quell.diagnostics.contribution import (
    Contribution,
    Contributions,
    Dispensable,
    contributions_from,
    find_dispensable,
)
from quell.diagnostics.step_time import step_times
from quell.diagnostics.summary import named_leaves
from quell.diagnostics.theme import png_bytes
from quell.evaluation import Evaluation

FEATURES = np.array([[1.0, 0.3], [-0.4, 1.1], [0.7, -0.9], [0.2, 0.5], [-1.0, -0.6]])
LABELS = np.array([1, 0, 1, 1, 0])
LOGISTIC = quell.logistic_regression(FEATURES, LABELS)
NAMES = ("c2", "c5", "c7")
PARAMS = quell.LocationScale(jnp.array([0.3, -0.2]), jnp.array([[-0.3, 0.0], [0.25, -0.2]]))
SAMPLER = quell.Sampler(2, 1)


@pytest.fixture(scope="module")
def point():
    """A gradient, parameters, and a state that has learned weights."""
    variates = [quell.paper.VARIATES[name] for name in NAMES]
    gradient = quell.Gradient(quell.Problem(LOGISTIC, quell.FullRank(2)), variates, sampler=SAMPLER)
    state = gradient.init(PARAMS)
    update = eqx.filter_jit(gradient.update)
    for step in range(20):
        _, state, _ = update(jax.random.key(step), PARAMS, state)
    return gradient, PARAMS, state


@pytest.fixture(scope="module")
def exact_covariances(point):
    """By quadrature over the noise and all minibatches; a step averages two independent replicates."""
    gradient, params, state = point
    draw, mass = exact_draw(gauss_hermite(20).power(2), LOGISTIC.num_data, SAMPLER.batch_size)
    evaluation = Evaluation(gradient.problem, params, draw)
    dense = [evaluation.algebra.dense(sample) for sample in gradient.samples(evaluation, state)]
    found = []
    for name in ("loc", "scale"):
        rows = np.stack([np.asarray(getattr(tree, name)).reshape(len(mass), -1) for tree in dense])
        centred = rows - np.einsum("s,ksd->kd", mass, rows)[:, None]
        found.append(np.einsum("s,isd,jsd->ij", mass, centred, centred))
    return np.stack(found) / SAMPLER.num_replicates / LOGISTIC.num_data**2


@pytest.fixture(scope="module")
def covariances(point):
    return covariance.step_covariances(jax.random.key(5), *point, num=2000)


def _deviations(found, exact):
    return np.abs(found.mean(axis=0) - exact) / (found.std(axis=0, ddof=1) / math.sqrt(len(found)))


# The variance of the gradient


def test_covariances_are_those_of_quadrature(covariances, exact_covariances):
    limit = tolerances.STANDARD_ERRORS * 1.6  # the standard errors come from ten groups: Student's t, 9 degrees
    varies = np.abs(exact_covariances) > 1e-12  # the closed form of the entropy does not vary at all
    assert (_deviations(covariances, exact_covariances)[varies] < limit).all()
    assert (_deviations(covariances, 1.3 * exact_covariances)[:, 0, 0] > limit).all(), "an error of a third is seen"


def test_the_variance_of_base_and_combined_by_block(point, covariances, exact_covariances):
    gradient, _, state = point
    found = variance.variance_from(covariances, *point, num=2000)
    full = np.concatenate([[1.0], gradient.weights(state)])
    assert [block.name for block in found.blocks] == ["loc", "scale"]
    for block, exact in zip((*found.blocks, found.total), [*exact_covariances, exact_covariances.sum(0)], strict=True):
        for got, needed in ((block.base, exact[0, 0]), (block.combined, full @ exact @ full)):
            assert abs(got.value - needed) < 8 * got.standard_error
            assert abs(got.value - 1.5 * needed) > 8 * got.standard_error, "half as much again is seen"
        assert block.ratio.value == pytest.approx(block.base.value / block.combined.value)
        assert abs(block.ratio.value - exact[0, 0] / (full @ exact @ full)) < 8 * block.ratio.standard_error
    assert "total" in repr(found)
    assert "times lower" in repr(found)


def test_the_public_function_draws_and_is_reproducible(point, key):
    once, again = (quell.diagnostics.gradient_variance(key, *point, num=40) for _ in range(2))
    assert once == again
    assert once.total.base.value > once.total.combined.value > 0


@pytest.mark.parametrize("num", [19, 0, 2.5])
@pytest.mark.usefixtures("unchecked")
def test_too_few_draws_are_refused(point, key, num):
    with pytest.raises(ValueError, match=r"`num` must be .*at least 20, got "):
        quell.diagnostics.gradient_variance(key, *point, num=num)


def test_a_chunk_is_centred_by_its_own_mean():
    rows = np.random.default_rng(0).normal(size=(6, 3, 4)) + 1e3
    expected = sum(np.cov(rows[:, :, d].T) for d in range(4))
    np.testing.assert_allclose(covariance._covariance(jnp.asarray(rows)), expected, **tolerances.EXPECTATION)


def test_blocks_of_parameters_and_names_of_latents():
    family = quell.Product({"weights": quell.FullRank(2), "switches": quell.Bernoulli(2)})
    sizes = {name: vector.size for name, vector in covariance.vectors_by_block(family.init()).items()}
    assert sizes == {"switches": 2, "weights": 6}
    assert list(covariance.vectors_by_block(quell.MeanField(3).init())) == ["loc", "scale"]
    assert list(covariance.vectors_by_block(jnp.ones(3))) == ["params"]
    tree = {"slope": np.ones(2), "group": {"scale": np.ones(())}, "pair": (np.ones(1), np.ones(1))}
    assert list(named_leaves(tree)) == ["group.scale", "pair.0", "pair.1", "slope"]
    assert list(named_leaves(np.ones(2))) == ["z"]
    assert list(named_leaves({"a.b": 1.0, "a": {"b": 2.0}})) == ["['a']['b']", "['a.b']"], "no name is lost"


def test_a_variate_that_is_not_finite_counts_as_zero(point, key):
    gradient, params, _ = point
    broken = dataclasses.replace(
        gradient, variates=(*gradient.variates, _always_nan()), sampler=SAMPLER, rule=quell.Rule(v0=0.1)
    )
    found = covariance.step_covariances(key, broken, params, broken.init(params), num=20)
    assert np.isfinite(found).all()
    assert (found[..., -1, :] == 0).all()
    assert (found[..., 0, 0] > 0).all()


def _always_nan():
    network = _Nan()
    return quell.ControlVariate(
        quell.Data(), quell.ScoreFunction(), quell.ScoreFunction(full_data=True), quell.Surrogate(network), label="nan"
    )


class _Nan:
    """A surrogate network that returns NaN."""

    def __call__(self, z):
        return jnp.sum(z) * jnp.nan


def test_covariances_of_a_million_rows_do_not_overflow(key):
    """The square of their number is no 32-bit integer, and the default outside of these tests is 32 bits."""
    num = 2**20
    model = quell.Model(lambda z, x: -0.5 * (x - z[0]) ** 2, quell.NormalPrior(), np.zeros(num, np.float32), 1)
    problem = quell.Problem(model, quell.MeanField(1))
    params = quell.LocationScale(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))
    with jax.enable_x64(False):
        gradient = quell.Gradient(problem, sampler=quell.Sampler(1, 1))
        found = covariance.step_covariances(key, gradient, params, gradient.init(params), num=20)
    assert 0.01 < found[:, 0, 0, 0].mean() < 100.0, "of the ELBO per datum: about one"


# Dense algebra of ensembles


def _grouped(rows):
    """Covariances of ten groups of draws; the last axis of the rows holds the base gradient and the variates."""
    return np.stack([np.cov(group.T) for group in rows])


def _made_up(num_variates, seed=0):
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(num_variates + 1, num_variates + 1))
    return _grouped(rng.normal(size=(10, 400, num_variates + 1)) @ mixing)


def _optimum(joint, keep):
    """Variance at the best weights of some variates, by least squares."""
    rows = [k + 1 for k in keep]
    if not rows:
        return joint[0, 0]
    gram, cross = joint[np.ix_(rows, rows)], joint[rows, 0]
    return joint[0, 0] - cross @ np.linalg.solve(gram, cross)


def test_best_weights_are_those_of_least_squares():
    joint = _made_up(4)[0]
    keep = np.array([True, False, True, True])
    rows = [1, 3, 4]
    weights = ensembles.best_weights(joint, keep)
    expected = -np.linalg.solve(joint[np.ix_(rows, rows)], joint[rows, 0])
    np.testing.assert_allclose(weights, [expected[0], 0.0, *expected[1:]], **tolerances.EXPECTATION)
    (found,) = covariance.variance_with(joint[None], weights)
    np.testing.assert_allclose(found, _optimum(joint, [0, 2, 3]), **tolerances.EXPECTATION)


def test_weights_are_evaluated_on_held_out_draws():
    joint = _made_up(3)
    leaves = np.stack([joint, 2.0 * joint])
    masks = np.array([[True, True, True], [True, False, True]])
    found = ensembles.held_out_variances(joint[None], masks)
    both = ensembles.held_out_variances(leaves, masks)
    np.testing.assert_allclose(both, 3.0 * found, **tolerances.EXPECTATION, err_msg="leaves are added up")
    for row, mask in enumerate(masks):
        rows = [k + 1 for k in np.flatnonzero(mask)]
        for group in range(10):
            others = np.delete(joint, group, axis=0).mean(axis=0)
            weights = -np.linalg.solve(others[np.ix_(rows, rows)], others[rows, 0])
            full = np.concatenate([[1.0], weights])
            here = joint[group][np.ix_([0, *rows], [0, *rows])]
            np.testing.assert_allclose(found[row, group], full @ here @ full, **tolerances.EXPECTATION)
    assert ensembles.held_out_variances(leaves, np.zeros((0, 3), bool)).shape == (0, 10)


def test_the_least_useful_variate_goes_first():
    grouped = _made_up(5, seed=3)
    joint, remaining = grouped.mean(axis=0), list(range(5))
    for place in ensembles.least_useful_first(grouped[None]):
        left = {k: _optimum(joint, [j for j in remaining if j != k]) for k in remaining}
        assert place == min(left, key=left.__getitem__)
        remaining.remove(place)


@pytest.fixture(scope="module")
def parts():
    """Three independent parts of a base gradient."""
    return np.moveaxis(np.random.default_rng(1).normal(size=(10, 400, 3)), 2, 0)


def _found_dispensable(base, **variates):
    joint = _grouped(np.stack([base, *variates.values()], axis=2))[None]
    return find_dispensable(joint, ensembles.least_useful_first(joint), tuple(variates))


def test_of_two_equal_variates_one_is_dispensable(parts):
    a, b, rest = parts
    found = _found_dispensable(a + b + rest, a=a, b=b, a_again=a, b_again=-2 * b)
    assert len(found.names) == 2
    assert {"a", "a_again"} - set(found.names)
    assert {"b", "b_again"} - set(found.names)
    assert found.growth.value == pytest.approx(1.0, abs=1e-6)
    assert found.share.value == pytest.approx(0.0, abs=1e-6)


def test_nothing_is_dispensable_where_everything_helps(parts):
    a, b, rest = parts
    found = _found_dispensable(a + b + rest, a=a, b=b)
    assert found.names == ()
    assert found.growth.value == 1.0


def test_everything_is_dispensable_where_nothing_helps(parts):
    a, b, rest = parts
    found = _found_dispensable(rest, a=a, b=b)
    assert found.names == ("a", "b")


# Contributions


@pytest.fixture(scope="module")
def found(point, covariances):
    return contributions_from(jax.random.key(6), covariances, *point, budget=0.0)


def test_contributions_against_dense_algebra(point, found, exact_covariances):
    joint = exact_covariances.sum(axis=0)
    gradient, _, state = point
    everyone = range(len(NAMES))
    best = _optimum(joint, everyone)
    assert tuple(one.name for one in found.variates) == NAMES
    np.testing.assert_allclose([one.weight for one in found.variates], gradient.weights(state), **tolerances.EXACT)
    for k, one in enumerate(found.variates):
        without = _optimum(joint, [j for j in everyone if j != k])
        for got, exact in (
            (one.alone, 1 - _optimum(joint, [k]) / joint[0, 0]),
            (one.share, (without - best) / joint[0, 0]),
            (one.growth, without / best),
        ):
            assert abs(got.value - exact) < 8 * got.standard_error + 0.02 * max(1.0, exact)
            assert abs(got.value - exact - 2.0) > 8 * got.standard_error, "a mistake of two is seen"
    assert max(one.growth.value for one in found.variates) > 1.5
    assert found.best.value <= found.combined.value * 1.05
    assert "c7" in repr(found)


def test_costs_are_measured(key):
    """The full data cost more than one datum."""
    gradient = quell.Gradient(quell.Problem(_large(), quell.MeanField(20)), [_costly()], sampler=quell.Sampler(1, 1))
    params = gradient.problem.family.init()
    found = quell.diagnostics.contributions(key, gradient, params, gradient.init(params), num=20)
    assert found.step_seconds > 0
    assert 0.2 < found.cost < 1
    assert 0.2 < found.variates[0].cost < 1


def _large():
    rng = np.random.default_rng(0)
    return quell.logistic_regression(rng.normal(size=(5000, 20)), rng.uniform(size=5000) > 0.5)


def _costly():
    every = quell.Reparameterization(full_data=True)
    return quell.ControlVariate(quell.Data(), quell.Reparameterization(), every, label="costly")


def test_without_a_budget_nothing_is_measured(found):
    assert math.isnan(found.cost)
    assert math.isnan(found.step_seconds)
    assert all(math.isnan(one.cost) for one in found.variates)


def test_a_gradient_without_variates_has_no_contributions(key):
    gradient = quell.Gradient(quell.Problem(LOGISTIC, quell.MeanField(2)), sampler=SAMPLER)
    params = gradient.problem.family.init()
    found = quell.diagnostics.contributions(key, gradient, params, gradient.init(params), num=20)
    assert found.variates == ()
    assert found.base == found.combined == found.best
    assert found.dispensable.names == ()
    noise = quell.diagnostics.gradient_variance(key, gradient, params, gradient.init(params), num=20)
    assert noise.total.ratio.value == 1.0


def test_subsets_are_compiled_in_turn_until_the_budget_is_spent(monkeypatch, key):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    gradient = quell.Gradient(quell.Problem(LOGISTIC, quell.MeanField(2)), [quell.paper.VARIATES["c2"]])
    params = gradient.problem.family.init()
    state = gradient.init(params)
    seconds, relative = step_times(key, gradient, params, state, subsets={"none": [], "all": [0]}, budget=1e-9)
    assert relative == {}
    assert seconds > 0


# Importance ratios


@pytest.fixture(scope="module")
def arviz():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return pytest.importorskip("arviz")


@pytest.mark.parametrize("scale", [0.01, 0.5, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("num", [25, 100, 1000])
def test_smoothing_agrees_with_arviz(arviz, num, scale):
    ratios = scale * np.random.default_rng(num).normal(size=num) - 300.0
    ratios[0] = -np.inf if num == 1000 else ratios[0]
    found = quell.diagnostics.psis(ratios)
    log_weights, shape = arviz.psislw(ratios.copy())
    np.testing.assert_allclose(found.khat, shape, **tolerances.SMOOTHED)
    np.testing.assert_allclose(found.log_weights, log_weights, **tolerances.SMOOTHED)
    np.testing.assert_allclose(np.exp(found.log_weights).sum(), 1.0, **tolerances.EXACT)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_the_shape_of_a_pareto_tail_is_found(shape):
    ratios = -shape * np.log(np.random.default_rng(7).uniform(size=40_000))
    tail = 3 * math.sqrt(ratios.size)
    error = (1 + shape) / math.sqrt(tail)
    found = quell.diagnostics.psis(ratios).khat
    assert abs(found - shape) < tolerances.STANDARD_ERRORS * error
    assert abs(found - shape - 1.0) > tolerances.STANDARD_ERRORS * error, "one more is seen"


def test_ratios_without_a_tail():
    equal = quell.diagnostics.psis(np.zeros(100))
    assert equal.khat == -math.inf
    np.testing.assert_allclose(equal.log_weights, -math.log(100), **tolerances.EXACT)
    rounding = 1e-13 * np.random.default_rng(0).normal(size=100)
    assert quell.diagnostics.psis(rounding, resolution=1e-11).khat == -math.inf
    assert math.isnan(quell.diagnostics.psis(np.full(100, np.nan)).khat)
    assert math.isnan(quell.diagnostics.psis(np.full(100, -np.inf)).khat)
    with pytest.raises(ValueError, match=r"`log_ratios` must have at least 25 entries, got 24"):
        quell.diagnostics.psis(np.zeros(24))


def test_the_threshold_depends_on_the_number_of_samples():
    assert quell.diagnostics.khat_threshold(100) == pytest.approx(0.5)
    assert quell.diagnostics.khat_threshold(10**6) == 0.7


@pytest.mark.parametrize(
    ("value", "family", "words"),
    [
        (-math.inf, quell.MeanField(3), "the fit is exact"),
        (0.2, quell.MeanField(3), "close to the posterior"),
        (0.65, quell.MeanField(3), "importance weights can correct"),
        (0.8, quell.MeanField(3), r"misses parts.*`quell\.FullRank\(3\)`"),
        (0.8, quell.MeanField(2000), r"misses parts.*`quell\.LowRank\(2000, rank=20\)`"),
        (0.8, quell.FullRank(3), "misses parts.*no Gaussian does better in these coordinates"),
        (math.inf, quell.Gamma(3), "far from the posterior.*one block"),
    ],
)
def test_the_advice_names_a_way_out(value, family, words):
    assert re.search(words, khat.khat_advice(value, 0.7, family))


def test_a_log_density_that_is_not_finite_is_counted():
    sample = densities.ScoredSample(jnp.zeros((100, 1)), np.append(np.zeros(99), np.nan), np.zeros(100), 0.0)
    found = khat.khat_of(sample, quell.MeanField(1))
    assert math.isnan(found.value)
    assert not found.is_good
    assert "not finite at 1 of 100 samples" in found.advice


# Estimates


def test_an_estimate_shows_the_digits_that_its_error_leaves():
    assert repr(estimate.Estimate(-123.456, 0.789)) == "-123.46 ± 0.79"
    assert repr(estimate.Estimate(-117.0381, 0.0)) == "-117.038"
    assert repr(estimate.Estimate(1.25e-9, 3e-10)) == "1.25e-09 ± 3e-10"
    assert repr(estimate.Estimate(math.nan, math.nan)) == "nan"


def test_ratios_of_averages_and_their_errors():
    rng = np.random.default_rng(2)
    below = rng.uniform(1, 2, 4000)
    above = 3 * below + rng.normal(size=4000)
    found = estimate.ratio_of(above, below)
    assert abs(found.value - 3) < tolerances.STANDARD_ERRORS * found.standard_error
    assert found.standard_error == pytest.approx(1 / 1.5 / math.sqrt(4000), rel=0.1)
    assert estimate.ratio_of(np.ones(3), np.zeros(3)).value == math.inf
    assert math.isnan(estimate.ratio_of(np.full(3, np.nan), np.ones(3)).value)


# Advice


def _levels(found):
    return [one.level.name for one in found]


def test_advice_on_the_trend_of_the_elbo():
    flat = np.random.default_rng(0).normal(size=1000)
    assert _levels(advice.advise_trend(flat)) == ["GOOD"]
    rising = advice.advise_trend(flat + 0.02 * np.arange(1000))
    assert _levels(rising) == ["ACT"]
    assert "still rises, by 3.90 ± 0.14 nats" in rising[0].text
    assert "`steps=2000`" in rising[0].text
    assert "lower the learning rate" in advice.advise_trend(flat - 0.02 * np.arange(1000))[0].text
    assert "too few" in advice.advise_trend(flat[:10])[0].text
    assert "too few" in advice.advise_trend(flat[:0])[0].text
    assert "not finite" in advice.advise_trend(np.append(flat, np.nan))[0].text


@pytest.mark.parametrize(
    ("ratio", "num", "level", "words"),
    [
        (12.3, 4, "GOOD", "the gradient 12 times"),
        (2.34, 4, "GOOD", "the gradient 2.3 times"),
        (1.05, 4, "NOTE", "hardly lower the variance"),
        (0.5, 4, "ACT", "2.0 times higher"),
        (math.nan, 4, "NOTE", "not finite"),
        (1.0, 0, "NOTE", "No variates"),
    ],
)
def test_advice_on_the_variance(ratio, num, level, words):
    found = advice.advise_variance(estimate.Estimate(ratio, 0.01), num, quell.Rule())
    assert _levels(found) == [level]
    assert words in found[0].text


@pytest.mark.parametrize(
    ("rule", "advised"),
    [
        (quell.Rule(), "rule=quell.Rule(v0=0.01)"),
        (quell.Rule(v0=1e-9, metric="natural"), "rule=quell.Rule(v0=1e-08, metric='natural')"),
        (quell.Rule(v0=0.0), "rule=quell.Rule(v0=0.01)"),
    ],
)
def test_advice_to_shrink_weights_starts_from_the_rule_of_the_fit(rule, advised):
    (found,) = advice.advise_variance(estimate.Estimate(0.5, 0.01), 4, rule)
    assert advised in found.text


def test_advice_on_what_was_chosen():
    """No variates is good advice where that was the choice."""
    found = advice.advise_variance(estimate.Estimate(1.0, 0.0), 0, quell.Rule(), reason="It is exact.")
    assert found == [advice.Advice(advice.Level.GOOD, "It is exact.")]


def test_advice_on_steps_and_variates_that_were_left_out():
    assert advice.advise_skipped(0, 100) == []
    assert "1 of 1,000 step was skipped" in advice.advise_skipped(1, 1000)[0].text
    assert _levels(advice.advise_skipped(30, 1000)) == ["ACT"]
    assert advice.advise_dropped(["a", "b"], [0, 0], 100) == []
    few, many = advice.advise_dropped(["a", "b"], [0, 1], 1000), advice.advise_dropped(["a", "b"], [7, 900], 1000)
    assert "b at 1." in few[0].text
    assert "remove them with `variates=[v for v in" in many[0].text


def _contributions(*variates, idle=(), growth=1.0, cost=math.nan):
    one = estimate.Estimate(1.0, 0.1)
    entries = [
        Contribution(name, 0.5, 0.5, one, one, estimate.Estimate(factor, 0.1), price)
        for name, factor, price in variates
    ]
    dispensable = Dispensable(tuple(idle), estimate.Estimate(growth, 0.01), one, cost)
    return Contributions(tuple(entries), one, one, one, dispensable, 1e-3, 0.5)


def test_advice_on_variates_that_do_not_pay():
    idle = _contributions(
        ("c3", 1.0, 0.3), ("c6", 1.0, 0.3), ("c7", 4.0, 0.2), idle=("c3", "c6"), growth=1.004, cost=0.61
    )
    found = advice.advise_variates(idle)
    assert _levels(found) == ["ACT"]
    assert found[0].text.startswith(
        "Without c3 and c6 the variance grows by 0.4% and a step takes 61% less time: remove"
    )
    assert "not in ['c3', 'c6']]`" in found[0].text
    cheap = _contributions(("c3", 1.0, 0.01), idle=("c3",), cost=0.01)
    assert advice.advise_variates(cheap) == []
    unknown = advice.advise_variates(_contributions(("c3", 1.0, math.nan), idle=("c3",), growth=0.99))
    assert unknown[0].text.startswith("Without c3 the variance grows by 0%: remove it")
    costly = advice.advise_variates(_contributions(("c4", 1.1, 0.4), ("c7", 4.0, 0.4)))
    assert len(costly) == 1
    assert "Without c4 the variance grows 1.10 times and a step takes 40% less time" in costly[0].text


def test_advice_on_weights_khat_and_the_end():
    one = estimate.Estimate
    assert advice.advise_weights(one(1.0, 0.1), one(0.9, 0.1)) == []
    assert "2.0 times lower" in advice.advise_weights(one(2.0, 0.1), one(1.0, 0.1))[0].text
    assert advice.advise_weights(one(math.nan, 0.1), one(1.0, 0.1)) == []
    bad = khat.Khat(0.8, 0.7, 1000, "The family is too narrow: try full rank.")
    assert advice.advise_khat(bad) == [(advice.Level.ACT, "k-hat 0.80: the family is too narrow: try full rank.")]
    assert _levels(advice.advise_khat(khat.Khat(-math.inf, 0.7, 1000, "Nothing is missed."))) == ["GOOD"]
    assert _levels(advice.advise_khat(khat.Khat(math.nan, 0.7, 1000, "Not finite."))) == ["ACT"]
    assert advice.advise_end(quell.Status.COMPLETED) == []
    assert _levels(
        [advice.advise_end(status)[0] for status in quell.Status if status is not quell.Status.COMPLETED]
    ) == [
        {"CONVERGED": "GOOD", "NOT_CONVERGED": "ACT", "DIVERGED": "ACT"}.get(s.name, "NOTE")
        for s in quell.Status
        if s.name != "COMPLETED"
    ]


@pytest.mark.parametrize(
    ("share", "text"), [(0.0, "0%"), (1e-5, "less than 0.1%"), (0.004, "0.4%"), (0.0951, "10%"), (0.61, "61%")]
)
def test_shares_have_two_digits_at_most(share, text):
    assert advice.percent(share) == text


# Figures

HOSTILE = ("$\\frac{", "_hidden", "日本", "<script>alert(1)</script>", "a\nb\x00c" + "d" * 60)


def _history(num_steps, num_variates, *, skip=()):
    rng = np.random.default_rng(0)
    norms = np.exp(rng.normal(size=(2, num_steps)))
    elbo = -100 * np.exp(-np.arange(num_steps) / 100) + rng.normal(size=num_steps)
    skipped = np.isin(np.arange(num_steps), skip)
    elbo[skipped] = np.nan
    weights = rng.normal(size=(num_steps, num_variates)).cumsum(axis=0) / 30
    return quell.History(elbo, 10 * norms[0], norms[1], weights, weights > 1e9, skipped)


def _variance(names):
    one = estimate.Estimate
    blocks = [
        variance.BlockVariance(name, one(3.0, 0.1), one(value, 0.1), one(3.0, 0.1))
        for name, value in zip(names, itertools.cycle([1.0, 0.0, math.nan]), strict=False)
    ]
    return variance.GradientVariance(tuple(blocks), blocks[0], 1000)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_figure_can_be_drawn_whatever_the_names(theme):
    history = _history(400, len(HOSTILE), skip=[3, 4])
    priced = _contributions(*[(name, 1.5, 0.1 if k else math.nan) for k, name in enumerate(HOSTILE)])
    figures = [
        plots.plot_elbo(history, theme=theme),
        plots.plot_norms(history, theme=theme),
        plots.plot_weights(history, HOSTILE, theme=theme),
        plots.plot_contributions(priced, theme=theme),
        plots.plot_variance(_variance(HOSTILE), theme=theme),
    ]
    for figure in figures:
        assert png_bytes(figure, dpi=50).startswith(b"\x89PNG")
    legend = [text.get_text() for text in figures[2].legends[0].get_texts()]
    assert len(legend) == len(HOSTILE)
    assert max(map(len, legend)) <= 26


def test_figures_of_nothing_and_of_too_much():
    empty = quell.History.empty(2, 2)
    many = [f"variate {k}" for k in range(40)]
    crowded = _contributions(*[(name, 1.0 + k / 10, 0.01 * k) for k, name in enumerate(many)])
    figures = [
        plots.plot_elbo(empty),
        plots.plot_norms(empty),
        plots.plot_weights(empty, ["a", "b"]),
        plots.plot_weights(_history(5, 0), []),
        plots.plot_contributions(_contributions()),
        plots.plot_norms(_history(1, 0)),
        plots.plot_elbo(_history(1, 0, skip=[0])),
        plots.plot_elbo(_history(1, 0)),
    ]
    for figure in figures:
        assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")
    bars = plots.plot_contributions(crowded).axes[0]
    assert [label.get_text() for label in bars.get_yticklabels()] == many[-14:]
    lines = plots.plot_weights(_history(30, 40), many, shown=many[5:7])
    assert [text.get_text() for text in lines.legends[0].get_texts()] == many[5:7]
    assert lines.legends[0].get_title().get_text() == "38 others in grey"


def test_an_unknown_theme_is_refused():
    with pytest.raises(ValueError, match=r"`theme` must be one of light, dark, got 'drak'\. Did you mean 'dark'"):
        plots.plot_elbo(_history(3, 0), theme="drak")


def test_more_draws_decide_where_the_ratios_differ_little():
    """The ratios of a skewed posterior have a heap of values in which the cut of 10,000 draws may lie."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    labels = rng.uniform(size=200) < 1 / (1 + np.exp(-features @ np.array([1.0, -1.0, 0.5])))
    result = quell.fit(quell.logistic_regression(features, labels), quell.FullRank(3), key=jax.random.key(0))
    few = result.khat(num=10_000)
    assert few.is_open
    assert "num=40000" in few.advice
    assert result.final_khat.num > 10_000
    assert result.warnings == ()
    assert all(result.khat(jax.random.key(seed)).is_good for seed in range(4))


def test_a_wide_part_of_the_posterior_that_few_draws_reach_is_told_by_every_key():
    """Of 0.97 N(0, 1) + 0.03 N(0, 10^2), whose sd is 2, the fit has the first part: the ratios differ by 0.5%."""

    def log_density(z):
        return jnp.logaddexp(jnp.log(0.97) - z[0] ** 2 / 2, jnp.log(0.003) - z[0] ** 2 / 200)

    model = quell.Model(lambda z, x: 0.0 * x, log_density, data=jnp.zeros(1), latent=1)
    result = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    assert result.std < 1.1
    assert any(text.startswith("K-hat is") for text in result.warnings)
    assert not any(result.khat(jax.random.key(seed)).is_good for seed in range(4))
