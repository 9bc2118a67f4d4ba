# SPDX-License-Identifier: Apache-2.0
"""Schedules, averaging, callbacks, steps that are not finite, early stopping, several fits, and the algorithm."""

import dataclasses
import inspect
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
import tolerances
from quell import Status
from quell.fit import driver
from quell.fit.options import FitKeywords, SweepKeywords

MODEL = quell.gaussian_regression([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]], [0.3, -0.6, 1.4], noise=0.5)
FAMILY = quell.MeanField(2)
SAMPLER = quell.Sampler(1, 2)
SGD, FAST, EXPLODING = optax.sgd(0.02), optax.sgd(0.1), optax.sgd(1e200)  # so that fits share compiled programs


def _fit(key, *, model=MODEL, **options):
    defaults = {"optimizer": SGD, "steps": 120, "sampler": SAMPLER, "variates": ()}
    return quell.fit(model, FAMILY, key=key, **(defaults | options))


def _assert_same(one, other):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


def _assert_close(one, other, tolerance):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(left, right, **tolerance)


@pytest.fixture
def tiny_chunks(monkeypatch):
    """Chunks that have nothing to do with the clock, so that the host has its say often."""
    monkeypatch.setattr(driver, "_FIRST_CHUNK", 7)
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)


# The algorithm, schedules and averages


@pytest.fixture(scope="module")
def algorithm():
    problem = quell.Problem(MODEL, FAMILY)
    return quell.Algorithm(quell.Gradient(problem, sampler=SAMPLER), SGD)


@pytest.fixture(scope="module")
def iterates(algorithm):
    """All parameters that 120 steps of the algorithm pass through, by `scan` inside `jit`."""

    @jax.jit
    def run(key):
        def step(state, number):
            state, info = algorithm.step(jax.random.fold_in(key, number), state)
            return state, (state.params, info.elbo)

        return jax.lax.scan(step, algorithm.init(), jnp.arange(120))

    return run(jax.random.key(20181202))


def test_the_algorithm_takes_the_steps_of_the_fit(iterates, key):
    state, (_, elbos) = iterates
    result = _fit(key)
    _assert_close(state.params, result.params, tolerances.EXACT)
    np.testing.assert_allclose(elbos, result.history.elbo, **tolerances.EXACT)


def test_the_algorithm_samples_what_it_has_reached(algorithm, iterates, key):
    state, _ = iterates
    result = _fit(key)
    np.testing.assert_allclose(algorithm.sample(key, state, 4), result.sample(key, 4), **tolerances.EXACT)
    start = algorithm.init(result.params)
    _assert_same(start.params, result.params)


def test_the_algorithm_runs_many_at_once(algorithm, key):
    keys = jax.random.split(key, 3)
    states = jax.vmap(lambda one: algorithm.init())(keys)
    after, info = jax.jit(lambda keys, states: jax.vmap(algorithm.step)(keys, states))(keys, states)
    assert info.elbo.shape == (3,)
    assert len(set(after.params.loc[:, 0].tolist())) == 3


def test_a_schedule_of_optax_is_followed(key):
    stops = optax.sgd(optax.piecewise_constant_schedule(0.02, {40: 0.0}))
    result, halved = _fit(key, optimizer=stops), _fit(key, optimizer=stops, steps=40)
    _assert_same(result.params, halved.params)
    _assert_same(_fit(key, steps=40).params, halved.params)


@pytest.mark.parametrize(("average_from", "first"), [(0.0, 0), (0.5, 60), (0.666, 80)])
def test_the_average_is_that_of_the_last_iterates(average_from, first, iterates, key):
    _, (passed, _) = iterates
    result = _fit(key, average_from=average_from)
    _assert_close(result.params, jax.tree.map(lambda leaf: np.mean(leaf[first:], axis=0), passed), tolerances.EXACT)


def test_a_fit_that_ends_before_its_average_holds_the_last_params(key, tiny_chunks):
    stopped = _fit(key, average_from=0.5, callback=lambda progress: progress.step >= 30)
    assert stopped.status is Status.STOPPED
    _assert_same(stopped.params, _fit(key, steps=stopped.history.num_steps).params)


def test_averaging_takes_out_the_noise_of_a_constant_rate(key):
    """The posterior mean is known; the average over the second half is nearer to it than the last iterate."""
    features, targets = np.array([[1.0, 0.5], [1.0, -1.0], [1.0, 2.0]]), np.array([0.3, -0.6, 1.4])
    mean = np.linalg.solve(features.T @ features / 0.25 + np.eye(2), features.T @ targets / 0.25)
    noisy = {"optimizer": FAST, "steps": 4000}
    last, averaged = (_fit(key, average_from=part, **noisy).params.loc for part in (None, 0.5))
    assert np.linalg.norm(averaged - mean) < 0.3 * np.linalg.norm(last - mean)


# Callbacks


def test_a_callback_sees_every_step_once(key, tiny_chunks):
    seen = []
    result = _fit(key, callback=seen.append)
    steps = [progress.step for progress in seen]
    assert steps[0] == 7
    assert steps == sorted(set(steps))
    assert steps[-1] == 120
    _assert_same(quell.History.join([progress.recent for progress in seen]), result.history)
    _assert_same(seen[-1].params, result.params)
    assert {progress.steps for progress in seen} == {120}
    assert 0 < seen[0].seconds < seen[-1].seconds <= result.seconds.total


def test_a_callback_that_returns_true_ends_the_fit(key, tiny_chunks):
    result = _fit(key, callback=lambda progress: progress.step > 40)
    assert result.status is Status.STOPPED
    assert 40 < result.history.num_steps < 80
    assert "status   stopped: The callback asked to stop" in repr(result)
    _assert_same(result.params, _fit(key, steps=result.history.num_steps).params)
    assert _fit(key, callback=lambda progress: "no answer").status is Status.COMPLETED


def test_an_exception_in_a_callback_passes_through(key):
    def callback(progress):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        _fit(key, callback=callback)


# Steps that are not finite


def _log_likelihood(z, batch):
    return -0.5 * (batch["x"] - z[0] - z[1]) ** 2 + 1e-9 * jnp.sqrt(batch["limit"] - z[0])


def _undefined_above(limit):
    """A Gaussian whose density is NaN where the first coordinate is above a limit."""
    data = {"x": jnp.array([0.3, 1.0, 0.4]), "limit": jnp.full(3, limit)}
    return quell.Model(_log_likelihood, quell.NormalPrior(), data, 2)


SOMETIMES = _undefined_above(0.4)


def test_steps_that_are_not_finite_are_skipped_and_counted(key):
    result = _fit(key, model=SOMETIMES, max_skipped=10)
    skipped = result.history.skipped
    assert result.status is Status.COMPLETED
    assert result.history.num_steps == 120
    assert 3 < result.history.num_skipped < 60
    np.testing.assert_array_equal(skipped, ~np.isfinite(result.history.elbo))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((result.params, result.state)))
    assert np.isfinite(result.history.tail_elbo()).all()
    assert result.history.taken.num_steps == 120 - result.history.num_skipped
    first = int(np.argmax(skipped))
    _assert_same(_fit(key, model=SOMETIMES, max_skipped=10, steps=first + 1).params, _reached(key, first).params)


def _reached(key, steps):
    return _fit(key, model=SOMETIMES, max_skipped=10, steps=steps)


def test_without_leave_the_first_step_that_is_not_finite_ends_the_fit(key):
    first = int(np.argmax(_fit(key, model=SOMETIMES, max_skipped=10).history.skipped))
    with pytest.warns(RuntimeWarning, match=f"stopped after {first} of 120 steps.*`max_skipped=10`"):
        result = _fit(key, model=SOMETIMES)
    assert result.status is Status.DIVERGED
    assert (result.history.num_steps, result.history.num_skipped) == (first, 0)
    _assert_same(result.params, _reached(key, first).params)


@pytest.mark.parametrize("max_skipped", [1, 4])
def test_too_many_in_a_row_end_the_fit(max_skipped, key):
    with pytest.warns(RuntimeWarning, match="stopped after"):
        result = _fit(key, optimizer=EXPLODING, max_skipped=max_skipped)
    assert result.status is Status.DIVERGED
    assert result.history.num_skipped == max_skipped
    assert result.history.skipped[-max_skipped:].all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_skipped_steps_are_not_averaged(key):
    passed, options = [], {"model": SOMETIMES, "max_skipped": 10, "steps": 60}
    every_step = quell.EarlyStopping(check_every=1, min_steps=1000)  # so that the callback sees each
    watch = {"early_stopping": every_step, "callback": lambda progress: passed.append(progress.params.loc)}
    result = _fit(key, **watch, **options)
    averaged = _fit(key, average_from=0.0, **options)
    taken = np.asarray(passed)[~result.history.skipped]
    assert len(passed) == 60
    assert result.history.num_skipped > 0
    np.testing.assert_allclose(averaged.params.loc, taken.mean(axis=0), **tolerances.EXACT)


# Early stopping

STOPPING = quell.EarlyStopping(tolerance=0.5)


def _ar(rng, num, correlation):
    """Noise whose neighbours depend on each other, with standard deviation one."""
    shocks = rng.normal(size=num) * np.sqrt(1 - correlation**2)
    values = np.zeros(num)
    for step in range(1, num):
        values[step] = correlation * values[step - 1] + shocks[step]
    return values


def _stops(elbo, stopping=STOPPING):
    """The step at which a fit with these estimates would end; `None` where it would not."""
    ends = range(stopping.check_every, elbo.size + 1, stopping.check_every)
    return next((end for end in ends if stopping.is_over(elbo[:end])), None)


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_no_fit_is_stopped_while_it_improves_through_noise(correlation):
    """The signal rises by 2 nats a quarter at the first decision; the noise of one estimate is ten times that."""
    rng = np.random.default_rng(0)
    rising = 0.016 * np.arange(3000)
    assert [_stops(rising + 20 * _ar(rng, 3000, correlation)) for _ in range(40)] == [None] * 40


def test_a_fit_that_has_arrived_is_stopped_soon():
    rng = np.random.default_rng(1)
    arrived = -50 * np.exp(-np.arange(6000) / 150)
    ends = [_stops(arrived + rng.normal(size=6000)) for _ in range(20)]
    assert all(end is not None and 1000 <= end <= 3500 for end in ends), ends
    louder = [_stops(arrived + 4 * rng.normal(size=6000)) for _ in range(20)]
    later = [6000 if end is None else end for end in louder]
    assert np.median(later) > np.median(ends), "noise makes a fit longer, not shorter"


def test_a_decision_needs_steps_patience_and_finite_estimates():
    flat = np.random.default_rng(2).normal(size=5000)
    assert _stops(flat) == 500 + 2 * 100
    assert _stops(flat, quell.EarlyStopping(min_steps=2000, patience=1)) == 2000
    assert _stops(flat, quell.EarlyStopping(tolerance=0.01)) is None, "the noise hides an improvement of that size"
    assert not STOPPING.is_over(np.full(5000, np.nan))
    holes = np.where(np.arange(5000) % 3 == 0, np.nan, flat)
    assert _stops(holes) is not None


CONVERGING = {"optimizer": FAST, "steps": 5000, "early_stopping": quell.EarlyStopping(tolerance=0.3)}


def test_the_fit_ends_at_the_step_that_its_history_says(key, monkeypatch):
    result = _fit(key, **CONVERGING)
    assert result.status is Status.CONVERGED
    assert "status   converged: " in repr(result)
    assert result.history.num_steps == _stops(result.history.elbo, CONVERGING["early_stopping"]) < 5000
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.001)
    again = _fit(key, **CONVERGING)
    _assert_same((again.params, again.history), (result.params, result.history))


def test_a_resumed_fit_ends_at_the_same_step(key, tmp_path):
    result = _fit(key, **CONVERGING)
    path = tmp_path / "fit.quell"
    part = quell.Checkpoint(path, every_steps=50)
    last = result.history.num_steps - 50

    def interrupt(progress):
        if progress.step >= last:
            raise KeyboardInterrupt

    stopped = _fit(key, **CONVERGING, checkpoint=part, callback=interrupt)
    assert stopped.status is Status.INTERRUPTED
    for _ in range(2):  # the second time there is nothing left to do
        resumed = _fit(key, **CONVERGING, checkpoint=quell.Checkpoint(path, resume=True))
        assert resumed.status is Status.CONVERGED
        _assert_same((resumed.params, resumed.history), (result.params, result.history))


# Several fits at once


def test_fit_many_is_fit_with_each_key(key):
    shared = {"optimizer": SGD, "steps": 60, "sampler": SAMPLER, "average_from": 0.5}
    shared["variates"] = quell.paper.variates("c2")
    results = quell.fit_many(MODEL, FAMILY, num_fits=3, key=key, **shared)
    assert len(results) == 3
    for result, one in zip(results, jax.random.split(key, 3), strict=True):
        alone = quell.fit(MODEL, FAMILY, key=one, **shared)
        assert result.status is alone.status
        _assert_close(
            (result.params, result.state, result.history), (alone.params, alone.state, alone.history), tolerances.RUNS
        )


def test_a_fit_that_diverges_does_not_stop_the_others(key):
    shared = {"optimizer": SGD, "steps": 120, "sampler": SAMPLER, "variates": (), "max_skipped": 1}
    model = _undefined_above(0.55)
    with pytest.warns(RuntimeWarning, match=r"\d of 4 fits diverged; fit \d stopped after \d+ of 120"):
        results = quell.fit_many(model, FAMILY, num_fits=4, key=key, **shared)
    statuses = [result.status for result in results]
    assert set(statuses) == {Status.DIVERGED, Status.COMPLETED}
    for result, one in zip(results, jax.random.split(key, 4), strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            alone = quell.fit(model, FAMILY, key=one, **shared)
        assert (result.status, result.history.num_skipped) == (alone.status, alone.history.num_skipped)
        _assert_close((result.params, result.history), (alone.params, alone.history), tolerances.RUNS)
    with pytest.raises(quell.DivergenceError, match="of 4 fits diverged"):
        quell.fit_many(model, FAMILY, num_fits=4, key=key, throw=True, **shared)


def test_each_of_many_is_stopped_and_judged_alone(key, tiny_chunks):
    shared = {"optimizer": FAST, "steps": 120, "sampler": SAMPLER, "variates": ()}
    results = quell.fit_many(
        MODEL, FAMILY, num_fits=2, key=key, callback=lambda told: told.fit == 1 and told.step > 30, **shared
    )
    assert [result.status for result in results] == [Status.COMPLETED, Status.STOPPED]
    assert results[1].history.num_steps < 60
    stopping = CONVERGING["early_stopping"]
    many = quell.fit_many(MODEL, FAMILY, num_fits=2, key=key, **(shared | CONVERGING))
    for result in many:
        assert result.history.num_steps == _stops(result.history.elbo, stopping)


# Bad options

BAD = {
    "average_from": (1.0, ValueError, r"`average_from` .* got 1\.0"),
    "max_skipped": (-1, ValueError, r"`max_skipped` .* at least 0, got -1"),
    "sampler": (5, TypeError, r"`sampler` must be a `quell.Sampler`, got 5; try `sampler=quell.Sampler\(10\)`\.$"),
    "base": (5, TypeError, r"`base` must be a `quell.BaseGradient`, got 5; try `base=quell.BaseGradient\(\)`\.$"),
    "rule": (5, TypeError, r"`rule` must be a `quell.Rule`, got 5; try `rule=quell.Rule\(\)`\.$"),
    "early_stopping": (True, TypeError, r"`early_stopping` must be a `quell.EarlyStopping`, got True"),
    "checkpoint": (
        "fit.quell",
        TypeError,
        r"`checkpoint` must be a `quell.Checkpoint`, got 'fit.quell'",
    ),
    "callback": (3, TypeError, r"`callback` .* got 3; try "),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused(name, key):
    value, kind, text = BAD[name]
    with pytest.raises(kind, match=text):
        _fit(key, **{name: value})


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_option_is_refused(key):
    with pytest.raises(TypeError, match="stepz"):
        _fit(key, stepz=3)


@pytest.mark.parametrize(("function", "keywords"), [(quell.fit, FitKeywords), (quell.sweep, SweepKeywords)])
def test_options_are_documented_shown_and_typed(function, keywords):
    """The keyword arguments are fields of `FitOptions`, with its defaults, and each is in its docstring."""
    fields = {field.name: field.default for field in dataclasses.fields(quell.FitOptions)}
    shown = inspect.signature(function).parameters
    typed = keywords.__annotations__
    assert "options" not in shown
    for name in typed:
        assert shown[name].default == fields[name]
        assert re.search(rf"^ +{name}: ", quell.FitOptions.__doc__, re.MULTILINE)
    assert set(FitKeywords.__annotations__) == set(fields)


def test_fit_many_has_the_options_of_fit():
    one, many = (set(inspect.signature(function).parameters) for function in (quell.fit, quell.fit_many))
    assert many == one | {"num_fits"}


@pytest.mark.usefixtures("unchecked")
def test_bad_numbers_of_fits_and_settings_are_refused(key):
    with pytest.raises(ValueError, match=r"`num_fits` .* got 0"):
        quell.fit_many(MODEL, FAMILY, num_fits=0, key=key)
    with pytest.raises(ValueError, match=r"`tolerance` .* got -1"):
        quell.EarlyStopping(tolerance=-1)
    with pytest.raises(ValueError, match=r"`patience` .* got 0"):
        quell.EarlyStopping(patience=0)
    with pytest.raises(TypeError, match=r"`optimizer` .* got 0\.1"):
        quell.Algorithm(quell.Gradient(quell.Problem(MODEL, FAMILY)), 0.1)


def test_an_optimiser_that_overflows_is_not_followed(key):
    """Adam's second moment would be infinite for ever after, and its steps zero."""
    steep = quell.Model(lambda z, x: -1e200 * x * z[0], quell.NormalPrior(), jnp.ones(3), 2)
    with pytest.warns(RuntimeWarning, match="The fit stopped after 0"):
        result = quell.fit(steep, quell.MeanField(2), variates=(), optimizer=optax.adam(0.1), steps=5, key=key)
    assert result.status is quell.Status.DIVERGED
