# SPDX-License-Identifier: Apache-2.0
"""The loop: reproducible, compiled once, honest about how it ended, and right on a conjugate model."""

import contextlib
import dataclasses
import functools
import importlib
import time
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
import tolerances
from catalogue import ShiftedLogNormal
from quell import ClosedForm, ControlVariate, Data, Prior, Reparameterization, Status
from quell.approximations import AbstractApproximation
from quell.core.compile_clock import COMPILE_CLOCK, CompileClock
from quell.evaluation.expectation import MOST_LEVEL, USUAL_LEVEL, Missed
from quell.fit import attempts, driver, loop, progress, step
from quell.fit.progress import progress_bar, warn_if_long
from quell.terms import AbstractTerm
from structured_models import MODELS

RNG = np.random.default_rng(3)
FEATURES = np.column_stack([RNG.uniform(-1, 1, 12), np.ones(12)])
TARGETS = FEATURES @ [1.5, -0.5] + 0.5 * RNG.normal(size=12)
GAUSSIAN = quell.gaussian_regression(FEATURES, TARGETS, noise=0.5)
LOGISTIC = quell.logistic_regression(FEATURES, TARGETS > 0)
ADAM, SGD = optax.adam(0.05), optax.sgd(0.1)  # one object each, so that fits share compiled programs
MINIBATCHES = quell.Sampler(2, 3)
RP, CF = Reparameterization(), ClosedForm()


def _fit(key, *, model=LOGISTIC, **options):
    """A fit on minibatches: all fits with these defaults share one compiled program."""
    family = quell.FullRank(model.dim)
    defaults = {"optimizer": ADAM, "steps": 37, "sampler": MINIBATCHES}
    if "variates" not in options:
        defaults["variates"] = quell.default_variates(quell.Problem(model, family), MINIBATCHES)
    return quell.fit(model, family, key=key, **(defaults | options))


def _assert_same(one, other):
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(left, right)


# What a fit returns


def test_the_history_has_one_entry_per_step(key):
    result = _fit(key)
    num_variates = len(result.gradient.variates)
    assert num_variates == 4
    assert result.status is Status.COMPLETED
    assert result.history.num_steps == 37
    for name in ("elbo", "base_sq_norm", "combined_sq_norm"):
        values = getattr(result.history, name)
        assert values.shape == (37,)
        assert np.isfinite(values).all()
        assert (values != 0).all()
    assert result.history.weights.shape == (37, num_variates)
    assert result.history.dropped.shape == (37, num_variates)
    assert not result.history.dropped.any()
    np.testing.assert_array_equal(result.history.weights[0], 0.0)
    assert (result.history.weights[1:] != 0).all()


@pytest.mark.parametrize("steps", [1, 16, 17])
def test_any_number_of_steps_is_taken_exactly(steps, key):
    result, longer = _fit(key, steps=steps), _fit(key)
    assert result.history.num_steps == steps
    _assert_same(result.history, jax.tree.map(lambda values: values[:steps], longer.history))


def test_the_same_key_gives_the_same_fit_to_the_last_bit(key):
    once, again, other = _fit(key), _fit(key), _fit(jax.random.key(1))
    _assert_same((once.params, once.state, once.history), (again.params, again.state, again.history))
    assert (once.params.loc != other.params.loc).all()


def test_the_length_of_the_chunks_does_not_change_the_fit(key, monkeypatch):
    """Chunks are as long as the clock says, so their length must not matter."""
    once = _fit(key)
    monkeypatch.setattr(driver, "_FIRST_CHUNK", 5)
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)
    again = _fit(key)
    _assert_same((once.params, once.history), (again.params, again.history))


@pytest.mark.parametrize("rate", [0.2, 0.4])
def test_the_length_of_the_chunks_does_not_change_where_an_exact_fit_ends(rate, key, monkeypatch):
    """Convergence is looked for on a grid of steps."""
    optimizer = quell.natural_gradient(quell.Problem(LOGISTIC, quell.FullRank(2)), rate)
    once = _fit(key, variates="auto", optimizer=optimizer, steps=500, sampler=None)
    for name, value in (("_FIRST_CHUNK", 1), ("_CHUNK_SECONDS", 0.0), ("_LONG_SECONDS", 0.0)):
        monkeypatch.setattr(driver, name, value)  # each step is a chunk
    again = _fit(key, variates="auto", optimizer=optimizer, steps=500, sampler=None)
    assert once.status is again.status is Status.CONVERGED
    assert once.history.num_steps == again.history.num_steps < 500


@pytest.mark.parametrize(
    ("by_nodes", "by_rounding", "level", "base"),
    [
        (0.05, 0.5, USUAL_LEVEL, "exact"),
        (0.5, 0.0, MOST_LEVEL, "exact"),
        (0.5, 0.6, None, "common draws"),
        (5.0, 0.0, None, "common draws"),
        (0.0, 5.0, None, "common draws"),
    ],
)
def test_more_nodes_or_draws_take_over_where_nodes_or_rounding_miss_too_much(
    key, monkeypatch, by_nodes, by_rounding, level, base
):
    """More nodes where nodes miss a tenth of the tolerance, draws where all together is more than they miss."""
    tolerance = 0.01
    missed = Missed(by_nodes * tolerance, by_rounding * tolerance)
    monkeypatch.setattr(
        quell.FitResult,
        "quadrature_error",
        property(lambda result: Missed(0.0, 0.0) if result.problem.expectation is None else missed),
    )
    model = quell.from_numpyro(MODELS["probit"])
    result = quell.fit(model, quell.MeanField(model.dim), key=key, tolerance=tolerance)
    assert result.status is Status.CONVERGED
    assert result.choice.base == base
    assert level is None or result.problem.expectation.level == level


def test_what_cancelling_addends_lose_is_told_and_asks_for_draws(key):
    """It is not excused as the rounding that a sum of so large numbers has anyway."""
    model = quell.from_numpyro(MODELS["gaussian"])
    result = quell.fit(model, quell.MeanField(model.dim), key=key)
    known = result.problem.expectation
    both = [dataclasses.replace(group, weight=sign * 1e14 * group.weight) for group in known.groups for sign in (1, -1)]
    problem = dataclasses.replace(result.problem, expectation=dataclasses.replace(known, groups=(*known.groups, *both)))
    cancelling = dataclasses.replace(result, gradient=dataclasses.replace(result.gradient, problem=problem))
    plan = attempts.Task(quell.FitOptions(), model, quell.MeanField(model.dim), key).plan()
    assert [attempts.needs_draws(plan, one) for one in (result, cancelling)] == [False, True]
    told = [any("the fit followed miss about" in text for text in one.warnings) for one in (result, cancelling)]
    assert told == [False, True]


def test_an_exact_result_is_not_lost_where_draws_are_not_affordable(key, monkeypatch):
    monkeypatch.setattr(importlib.import_module("quell.gradient.base"), "refuses_memory", lambda *_, **__: "too large")
    asked = []
    monkeypatch.setattr(attempts, "needs_draws", lambda *_: asked.append(None) or True)
    model = quell.from_numpyro(MODELS["gaussian"])
    assert quell.fit(model, quell.MeanField(model.dim), key=key).problem.expectation is not None
    assert asked


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("before", [True, False, None])
@pytest.mark.parametrize("after", [True, False, None])
def test_what_starts_have_shown_is_kept_by_a_fit_that_goes_on(before, after, goes_on, key):
    results = [dataclasses.replace(_logistic_fit(), starts_differ=differ) for differ in (before, after)]
    shown = {before, after} if goes_on else {after}
    expected = True if True in shown else None if None in shown else False
    assert attempts._after(*results, goes_on=goes_on).starts_differ is expected


@functools.cache
def _logistic_fit():
    return quell.fit(LOGISTIC, quell.MeanField(2), key=jax.random.key(0))


LITTLE, OF_NODES, OF_ROUNDING, UNKNOWN = (0.9, 0.9), (1.1, 0.0), (0.0, 1.1), (0.0, np.nan)
"""Nats for each addend that nodes of a result miss, and that its ELBO is off."""


@pytest.mark.parametrize(
    ("misses", "change", "is_astray"),
    [
        (LITTLE, {}, False),
        (OF_NODES, {}, True),
        (OF_ROUNDING, {}, True),
        (UNKNOWN, {}, True),
        (OF_NODES, {"starts_differ": False}, False),
        (OF_NODES, {"status": Status.INTERRUPTED}, False),
    ],
    ids=["little", "of nodes", "of rounding", "unknown", "starts agree", "interrupted"],
)
@pytest.mark.parametrize("num_fits", [1, 2])
def test_a_fit_whose_best_start_is_astray_begins_again_from_the_first(
    key, monkeypatch, misses, change, is_astray, num_fits
):
    """Where the ELBO of the best start is off by more than a nat for each addend it says nothing."""
    model, taken, run = quell.from_numpyro(MODELS["gaussian"]), [], attempts.run_plan

    def runs(plan, bar):
        results = run(plan, bar)
        taken.append((plan, [result.num_gradients for result in results]))
        return [spoilt(results[0]), *results[1:]] if len(taken) == 1 else results

    def spoilt(result):
        weights = float(sum(jnp.sum(jnp.abs(group.weight)) for group in result.problem.expectation.groups))
        by_nodes, off = (weights * miss for miss in misses)
        seen = result.history.elbo.copy()
        seen[-1] = result.final_elbo.value + off
        history = result.history._replace(elbo=seen)
        result = dataclasses.replace(result, **({"starts_differ": True, "history": history} | change))
        result.__dict__["_quadrature"] = (result.final_elbo.value, Missed(by_nodes, 0.0))
        return result

    monkeypatch.setattr(attempts, "run_plan", runs)
    monkeypatch.setattr(attempts, "needs_more_nodes", lambda *_: False)
    monkeypatch.setattr(attempts, "needs_draws", lambda *_: False)
    results = quell.fit_many(model, quell.MeanField(model.dim), num_fits=num_fits, key=key)
    (first, gradients), *others = taken
    assert first.algorithm.most_starts > 1
    assert [plan.algorithm.most_starts for plan, _ in others] == [1] * is_astray
    assert [plan.options.steps < first.options.steps for plan, _ in others] == [True] * is_astray
    assert results[0].num_gradients == gradients[0] + sum(more[0] for _, more in others)
    assert [result.num_gradients for result in results[1:]] == gradients[1:]
    assert results[0].starts_differ is (is_astray or change.get("starts_differ", True)), "others were seen"


@pytest.mark.parametrize("option", ["steps", "checkpoint"])
def test_a_fit_without_steps_or_place_for_another_is_not_astray(key, monkeypatch, tmp_path, option):
    """Where its steps ran out among its starts the last one is of another start than the result."""
    options = {"steps": 3} if option == "steps" else {"checkpoint": quell.Checkpoint(tmp_path / "fit.quell")}
    model, plans, run = quell.from_numpyro(MODELS["gaussian"]), [], attempts.run_plan
    monkeypatch.setattr(attempts, "run_plan", lambda plan, bar: plans.append(plan) or run(plan, bar))
    monkeypatch.setattr(attempts, "is_astray", lambda result: pytest.fail("it was judged"))
    quell.fit(model, quell.MeanField(model.dim), key=key, **options)
    assert len(plans) == 1


def test_fits_that_are_interrupted_are_not_begun_again(key, monkeypatch):
    """As they would be with more nodes, where the expectations of a fit that has ended are inexact."""
    monkeypatch.setattr(attempts, "needs_more_nodes", lambda *_: pytest.fail("an interrupted fit was judged"))

    def interrupt(progress):
        raise KeyboardInterrupt

    results = quell.fit_many(LOGISTIC, quell.FullRank(2), num_fits=2, key=key, callback=interrupt)
    assert [result.status for result in results] == [Status.INTERRUPTED] * 2


def test_a_result_of_a_family_without_moments_is_printed(key):
    family = ShiftedLogNormal(2)
    result = quell.fit(LOGISTIC, family, optimizer=ADAM, steps=20, sampler=MINIBATCHES, variates=(), key=key)
    assert family.refuses(quell.Capability.MOMENTS) is not None
    assert "elbo" in repr(result)
    with pytest.raises(ValueError, match="mean"):
        _ = result.mean


def test_a_fit_goes_on_from_given_params(key):
    start = quell.LocationScale(jnp.array([0.3, -0.2]), jnp.array([[0.1, 0.0], [0.5, -0.4]]))
    result = _fit(key, params=start, optimizer=optax.sgd(0.0), steps=2, variates=())
    _assert_same(result.params, start)


@pytest.mark.slow
def test_repr_tells_what_a_user_wants_to_know(key):
    result = _fit(key)
    text = repr(result)
    assert "FullRank(dim=2" in text
    assert "LinearPredictor(log_sigmoid, num_data=12, dim=2)" in text
    assert "status   completed: All steps were taken" in text
    assert "steps    37 in " in text
    assert f"elbo     {result.elbo()} (exact), {result.gap} nats below the optimum" in text
    assert f"k-hat    {result.khat().value:.2f}, good up to" in text
    for name, weight in zip(result.gradient.names, result.history.weights[-3:].mean(axis=0), strict=True):
        assert f"{name} {weight:+.2f}" in text
    assert "times below the base gradient" in text
    assert "dropped" not in text
    assert "weights" not in repr(_fit(key, variates=(), steps=2))


def test_samples_have_the_shape_of_the_latent_and_the_moments_of_the_params(key):
    latent = {"shift": jnp.zeros(()), "slope": jnp.zeros((2, 1))}

    def log_likelihood(z, x):
        return -0.5 * (x[:, 0] - x @ z["slope"][:, 0] - z["shift"]) ** 2

    model = quell.Model(log_likelihood, quell.NormalPrior(), FEATURES, latent)
    result = _fit(key, model=model, optimizer=SGD, steps=5, variates=())
    num = 4000
    sample = result.sample(jax.random.key(5), num)
    assert sample["shift"].shape == (num,)
    assert sample["slope"].shape == (num, 2, 1)
    flat = np.column_stack([sample["shift"], sample["slope"][:, :, 0]])
    family = result.gradient.problem.family
    covariance = np.asarray(family.covariance_product(result.params, jnp.eye(3)))
    white = np.linalg.solve(np.linalg.cholesky(covariance), (flat - result.params.loc).T)
    products = np.concatenate([white, white * white, white[[0, 0, 1]] * white[[1, 2, 2]]])
    expected = np.repeat([0.0, 1.0, 0.0], 3)

    def deviations(found):
        return np.abs(found.mean(axis=1) - expected) / (found.std(axis=1) / np.sqrt(num))

    assert (deviations(products) < tolerances.STANDARD_ERRORS).all()
    assert (deviations(products + 0.2) > tolerances.STANDARD_ERRORS).all(), "a bias of a fifth is seen"


def test_progress_is_shown_on_stderr_between_chunks(key, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    quiet = _fit(key, progress=False)
    assert capsys.readouterr() == ("", "")
    shown = _fit(key, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "ELBO" in err
    assert "37/37" in err
    assert "steps/s" in err
    assert "reading the model" in err
    _assert_same(quiet.history, shown.history)


@pytest.mark.parametrize("compiles", [True, False])
def test_the_bar_tells_what_takes_so_long(compiles, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with COMPILE_CLOCK.compiling() if compiles else contextlib.nullcontext(), progress_bar(True, 10) as bar:
        bar.enter("fitting")
    err = capsys.readouterr().err
    assert ("compiling 0 s" in err, "fitting 0 s" in err) == (compiles, not compiles)


def test_the_seconds_of_a_fit_are_those_of_its_stages(key):
    began, before = time.perf_counter(), COMPILE_CLOCK.seconds
    seconds = _fit(key, steps=38).seconds
    assert seconds.reading > 0
    assert seconds.fitting > 0
    assert 0 <= seconds.compiling <= COMPILE_CLOCK.seconds - before
    assert seconds.total <= time.perf_counter() - began


def test_the_clock_of_the_compiler_counts_a_trace_within_another_once(monkeypatch):
    now = iter([3.0, 4.0, 6.0, 10.0])
    clock = CompileClock()
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    for ended, duration in (("jaxpr_trace", 1.0), ("jaxpr_trace", 0.5), ("jaxpr_trace", 5.0), ("backend_compile", 2.0)):
        clock._on_event(f"/jax/core/compile/{ended}_duration", duration)
    clock._on_event("/jax/checkpoint/write", 7.0)
    assert clock.seconds == 7.0, "from 1 to 6, and from 8 to 10"


def test_the_clock_of_the_compiler_hears_a_compilation():
    began, before = time.perf_counter(), COMPILE_CLOCK.seconds
    jax.jit(lambda x: jnp.sin(x) + 0.123456)(jnp.ones(3))
    assert 0 < COMPILE_CLOCK.seconds - before <= time.perf_counter() - began


# The same without our loop


@pytest.mark.slow
def test_a_plain_optax_loop_takes_the_same_steps(key):
    problem = quell.Problem(LOGISTIC, quell.FullRank(2))
    gradient = quell.Gradient(problem, quell.paper.variates("S7"), sampler=MINIBATCHES)
    params = problem.family.init()
    state, optimizer_state = gradient.init(params), ADAM.init(params)

    @jax.jit
    def take_step(key, params, state, optimizer_state):
        loss_grad, state, info = gradient.update(key, params, state)
        updates, optimizer_state = ADAM.update(loss_grad, optimizer_state)
        return optax.apply_updates(params, updates), state, optimizer_state, info

    for number in range(20):
        own = jax.random.fold_in(key, number)
        params, state, optimizer_state, info = take_step(own, params, state, optimizer_state)
    result = _fit(key, variates=gradient.variates, steps=20)
    for mine, theirs in zip(params, result.params, strict=True):
        np.testing.assert_allclose(mine, theirs, **tolerances.EXACT)
    np.testing.assert_allclose(info.weights, result.history.weights[-1], **tolerances.EXACT)
    np.testing.assert_allclose(info.elbo, result.history.elbo[-1], **tolerances.EXACT)


def test_a_second_fit_is_not_compiled_again(key):
    traces = []

    def log_likelihood(z, x):
        traces.append(None)
        return -0.5 * (x @ z) ** 2

    model = quell.Model(log_likelihood, quell.NormalPrior(), FEATURES, 2)
    variates = quell.default_variates(quell.Problem(model, quell.FullRank(2)), MINIBATCHES)
    options = {"model": model, "variates": variates, "optimizer": optax.adam(0.01)}
    _fit(key, **options)
    first = len(traces)
    assert first > 0
    again = _fit(jax.random.key(9), **options, steps=50)
    assert again.history.num_steps == 50
    assert len(traces) == first + 1, "the check of its shape looks once; nothing else may trace the likelihood again"
    _fit(key, **(options | {"optimizer": optax.sgd(0.01)}))
    assert len(traces) > first + 2, "the count sees a compilation"


# How a fit can end

EXPLODING = optax.sgd(1e30)


def test_divergence_keeps_the_last_finite_params_and_says_what_to_do(key):
    with pytest.warns(RuntimeWarning, match=r"stopped after (\d+) of 100 steps\. .*Lower the learning rate") as seen:
        result = _fit(key, model=GAUSSIAN, optimizer=EXPLODING, steps=100, variates=())
    taken = result.history.num_steps
    assert result.status is Status.DIVERGED
    assert 0 < taken < 100
    assert f"stopped after {taken} of 100" in str(seen[0].message)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    before = _fit(key, model=GAUSSIAN, optimizer=EXPLODING, steps=taken, variates=())
    assert before.status is Status.COMPLETED
    _assert_same((result.params, result.history), (before.params, before.history))
    assert "status   diverged: A step would have made" in repr(result)


def test_divergence_raises_where_asked_to(key):
    with pytest.raises(quell.DivergenceError, match=r"stopped after \d+ of 100 steps\. .*Lower the learning rate"):
        _fit(key, model=GAUSSIAN, optimizer=EXPLODING, steps=100, variates=(), throw=True)


@pytest.mark.parametrize("num_chunks", [0, 2])
def test_an_interruption_returns_what_was_reached(num_chunks, key, monkeypatch):
    run_chunk, states = loop.run_chunk, []

    def interrupted(*args):
        if len(states) == num_chunks:
            raise KeyboardInterrupt
        states.append(run_chunk(*args)[0])
        return run_chunk(*args)

    monkeypatch.setattr(loop, "run_chunk", interrupted)
    result = _fit(key, steps=5000)
    reached = int(states[-1].step) if states else 0
    assert reached < 5000
    assert result.status is Status.INTERRUPTED
    assert result.history.num_steps == reached
    assert result.history.weights.shape == (reached, 4)
    _assert_same(result.params, states[-1].params if states else quell.FullRank(2).init())
    assert "status   interrupted" in repr(result)
    assert result.sample(key, 3).shape == (3, 2)


# A conjugate model


def _exact_posterior():
    precision = FEATURES.T @ FEATURES / 0.5**2 + np.eye(2)
    covariance = np.linalg.inv(precision)
    return covariance @ FEATURES.T @ TARGETS / 0.5**2, covariance


@pytest.mark.parametrize("sampler", [None, quell.Sampler(1, 3)], ids=["full data", "minibatches"])
def test_the_default_fit_of_a_conjugate_model_is_its_posterior(sampler, key):
    family = quell.FullRank(2)
    result = quell.fit(GAUSSIAN, family, key=key, steps=1500, sampler=sampler)
    mean, covariance = _exact_posterior()
    found = family.covariance_product(result.params, jnp.eye(2))
    np.testing.assert_allclose(result.params.loc, mean, **tolerances.FITTED)
    np.testing.assert_allclose(found, covariance, **tolerances.FITTED)


# Variates that are not finite


class _Broken(AbstractApproximation):
    """An approximation whose gradients are NaN at latents beyond a limit."""

    limit: float

    @property
    def name(self):
        return "broken"

    def refuses(self, problem, term):
        return None

    def init(self, problem):
        return None

    def apply(self, term, state):
        return _BrokenTerm(term, self.limit)


class _BrokenTerm(AbstractTerm):
    term: AbstractTerm
    limit: float

    @property
    def name(self):
        return "broken"

    def values(self, evaluation, transport, *, full_data):
        return self.term.values(evaluation, transport, full_data=full_data)

    def grads(self, evaluation, transport, *, full_data):
        grads = self.term.grads(evaluation, transport, full_data=full_data)
        return jnp.where(evaluation.latents(transport)[:, :1] > self.limit, jnp.nan, grads)

    def expand(self, evaluation, anchor, batch):
        return self.term.expand(evaluation, anchor, batch)

    def closed_form(self, evaluation, *, full_data):
        return self.term.closed_form(evaluation, full_data=full_data)

    def refuses_closed_form(self, problem):
        return self.term.refuses_closed_form(problem)


SOUND = ControlVariate(Data(), RP, CF, approximation=quell.TaylorInLatent())


def _broken(limit):
    return ControlVariate(Prior(), RP, CF, approximation=_Broken(limit))


@pytest.mark.parametrize(
    "family", [quell.MeanField(2), pytest.param(quell.FullRank(2), marks=pytest.mark.slow)], ids=repr
)
def test_a_variate_that_is_always_nan_is_as_good_as_absent(family, key):
    options = {"key": key, "optimizer": ADAM, "steps": 20, "sampler": MINIBATCHES}
    without = quell.fit(LOGISTIC, family, variates=[SOUND], **options)
    result = quell.fit(LOGISTIC, family, variates=[_broken(-jnp.inf), SOUND], **options)
    np.testing.assert_array_equal(result.history.dropped, [[True, False]] * 20)
    np.testing.assert_array_equal(result.history.weights[:, 0], 0.0)
    for found, expected in zip(result.params, without.params, strict=True):
        np.testing.assert_allclose(found, expected, **tolerances.EXACT)
    for name in ("elbo", "base_sq_norm", "combined_sq_norm"):
        found, expected = getattr(result.history, name), getattr(without.history, name)
        np.testing.assert_allclose(found, expected, **tolerances.EXACT)
    np.testing.assert_allclose(result.history.weights[:, 1:], without.history.weights, **tolerances.EXACT)


def test_a_variate_that_is_sometimes_nan_is_dropped_and_counted(key):
    result = _fit(key, variates=(SOUND, _broken(0.5)))
    dropped = result.history.dropped[:, 1]
    assert result.status is Status.COMPLETED
    assert 5 < dropped.sum() < 32
    assert not result.history.dropped[:, 0].any()
    np.testing.assert_array_equal(result.history.weights[dropped, 1], 0.0)
    seen_before = np.cumsum(~dropped) > 1  # the weights are those of earlier steps
    assert (result.history.weights[~dropped & seen_before, 1] != 0).all()
    leaves = jax.tree.leaves((result.params, result.state, result.history))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert f"dropped  broken(prior): rp - cf {dropped.sum()} times" in repr(result)


@pytest.mark.parametrize("family", [quell.MeanField(2), quell.FullRank(2)])
def test_mean_and_std_are_those_of_the_params(family, key):
    model = quell.Model(
        lambda z, x: -0.5 * (x - z["a"] - z["b"]) ** 2, quell.NormalPrior(), jnp.ones(3), {"a": jnp.ones(()), "b": 1.0}
    )
    result = quell.fit(model, family, steps=5, key=key)
    covariance = family.covariance_product(result.params, jnp.eye(2))
    np.testing.assert_allclose([result.mean["a"], result.mean["b"]], family.mean(result.params), **tolerances.EXACT)
    np.testing.assert_allclose(
        [result.std["a"], result.std["b"]], jnp.sqrt(jnp.diagonal(covariance)), **tolerances.EXACT
    )


@pytest.mark.parametrize("name", ["mean", "std"])
def test_moments_that_a_family_does_not_have_are_refused_with_a_way_out(name, key):
    model = quell.Model(lambda z, x: -0.5 * (x - z[0] - z[1]) ** 2, quell.NormalPrior(), jnp.ones(3), 2)
    result = quell.fit(model, ShiftedLogNormal(2), steps=2, variates=(), key=key)
    with pytest.raises(ValueError, match=rf"`{name}` needs .* got ShiftedLogNormal.*; try `result.summary\(\)`"):
        getattr(result, name)
    assert result.summary().as_dict()


@pytest.mark.parametrize(("optimizer", "needed"), [(0.1, r"`optimizer` must be an optax transformation, got 0\.1")])
@pytest.mark.usefixtures("unchecked")
def test_an_optimizer_that_is_none_is_explained(optimizer, needed, key):
    model = quell.logistic_regression([[1.0], [2.0]], [0, 1])
    with pytest.raises(TypeError, match=needed):
        quell.fit(model, quell.MeanField(1), optimizer=optimizer, steps=1, key=key)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("wrong", [lambda z, x: jnp.sum(x * z), lambda z, x: x[:, None] * x * z])
def test_a_likelihood_of_the_wrong_shape_is_refused_before_the_fit(wrong, key):
    model = quell.Model(wrong, quell.NormalPrior(), jnp.ones(5), 1)
    with pytest.raises(quell.ModelError, match=r"\(3,\)"):
        quell.fit(model, quell.MeanField(1), steps=1, key=key)


@pytest.mark.parametrize("family", [quell.MeanField(2), quell.FullRank(2), quell.Gamma(2), quell.Bernoulli(2)])
def test_a_step_leaves_the_types_of_the_state_alone(family):
    """Otherwise the second chunk of a fit would be compiled again."""
    model = quell.Model(lambda z, x: -((x - z[0] - z[1]) ** 2), lambda z: -z @ z, jnp.arange(3.0), 2)
    problem = quell.Problem(model, family)
    base = quell.default_base(problem)
    gradient = quell.Gradient(problem, quell.default_variates(problem), base=base)
    algorithm, policy = quell.Algorithm(gradient, optax.adam(0.01)), step.StepPolicy()
    start = step.init_loop(algorithm, family.init(), averages=True)
    after = jax.eval_shape(lambda state: step.take_step(algorithm, policy, jax.random.key(0), state)[0], start)
    before = jax.eval_shape(lambda: start)
    for one, two in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        assert (one.shape, one.dtype, one.weak_type) == (two.shape, two.dtype, two.weak_type)


def test_a_long_fit_says_what_it_takes_and_what_would_take_less():
    model = quell.Model(lambda z, x: -(z[0] ** 2) * x, quell.NormalPrior(), jnp.ones(3), 50)
    problem, state = quell.Problem(model, quell.FullRank(50)), quell.FullRank(50).init()
    told = r"1,000 more steps of 2\.1 s, about 35 minutes.*`quell\.LowRank\(50, rank=10\)` has 600"
    with pytest.warns(UserWarning, match=told):
        warn_if_long(problem, state, 1000, 2.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_long(problem, state, 1000, 0.1)


def test_a_fit_that_ends_by_itself_does_not_say_what_all_its_steps_would_take(key, monkeypatch):
    monkeypatch.setattr(progress, "LONG_SECONDS", 0.0)
    for name, value in (("_FIRST_CHUNK", 1), ("_CHUNK_SECONDS", 0.0), ("_LONG_SECONDS", 0.0)):
        monkeypatch.setattr(driver, name, value)
    with pytest.warns(UserWarning, match="more steps of"):
        _fit(key, steps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quell.fit(LOGISTIC, quell.FullRank(2), key=key, khat=False).status is Status.CONVERGED


@pytest.mark.parametrize(
    ("newton", "sampled", "status", "told", "is_sampled"),
    [
        (-5.0, -3.0, Status.COMPLETED, Status.COMPLETED, True),
        (-3.0, -5.0, Status.COMPLETED, Status.NOT_CONVERGED, False),
        (np.nan, -5.0, Status.COMPLETED, Status.COMPLETED, True),
        (-3.0, np.nan, Status.DIVERGED, Status.NOT_CONVERGED, False),
        (-3.0, -5.0, Status.INTERRUPTED, Status.INTERRUPTED, False),
        (-5.0, -3.0, Status.INTERRUPTED, Status.INTERRUPTED, True),
    ],
)
def test_the_better_of_two_attempts_has_the_work_of_both(newton, sampled, status, told, is_sampled, key):
    before = quell.fit(LOGISTIC, quell.FullRank(2), key=key, khat=False)

    def ended(status, value):
        result = dataclasses.replace(before, status=status)
        result.__dict__["_fresh"] = types.SimpleNamespace(log_ratios=np.full(2, value))
        return result

    chosen = attempts.better_of(ended(Status.NOT_CONVERGED, newton), ended(status, sampled))
    assert (chosen.status, chosen.num_gradients) == (told, 2 * before.num_gradients)
    assert chosen.choice.reason.startswith("Newton steps on draws gave up.") is is_sampled
    np.testing.assert_allclose(chosen.seconds.total, 2 * before.seconds.total)
