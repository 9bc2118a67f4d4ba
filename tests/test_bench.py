# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its problems are what they say, its clock and its search find the right things, its command works."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import optax
import pytest
import scipy.optimize
from numpyro.handlers import seed
from numpyro.infer.util import log_density
from typer.testing import CliRunner

import quell
import tolerances
from experiments.bench import clock, models, problems, trial
from experiments.bench.adam_runner import Hyper, falling
from experiments.bench.command import sooner_lines
from experiments.bench.fit_runner import START_SCALE, FitRunner
from experiments.bench.fixed import base_options, fixed_options
from experiments.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from experiments.bench.judge import elbo_of, seconds_of
from experiments.bench.methods import own_methods
from experiments.bench.optimum import best_gaussian
from experiments.bench.peers import load_peer, peer_names
from experiments.bench.piece import Outcome
from experiments.bench.race import Entry, entries_of
from experiments.bench.reference import Reference
from experiments.bench.report import Report
from experiments.bench.runner import AbstractRunner, Axis
from experiments.bench.search import search
from experiments.bench.trial import Trials, median
from quell.cli.app import app
from quell.fit import FitOptions, defaults, method, warm_start
from quell.fit.defaults import WARM_UP_STEPS

SMALL = ("sonar", "poisson", "hierarchical", "network")


@pytest.fixture(scope="module")
def benches():
    return {name: problems.make_problem(name) for name in SMALL}


# Problems


@pytest.mark.parametrize("name", SMALL)
def test_numpyro_and_quell_have_the_same_log_joint(benches, name):
    bench = benches[name]
    model = bench.problem.model
    z = 0.3 * jax.random.normal(jax.random.key(1), (bench.dim,))
    sites = model.constrain(z)
    sites = sites if isinstance(sites, dict) else {"z": sites}
    theirs, _ = log_density(bench.numpyro_model, bench.rows, {"num_data": bench.num_data}, sites)
    jacobian = sum(math.log(sites[name]) for name in ("spread", "noise") if name in sites)
    np.testing.assert_allclose(bench.log_joint(z, model.data), theirs + jacobian, **tolerances.EXACT)


@pytest.mark.parametrize("name", SMALL)
def test_a_minibatch_of_rows_is_scaled_by_numpyro_as_by_us(benches, name):
    bench = benches[name]
    model = bench.problem.model
    z = 0.3 * jax.random.normal(jax.random.key(1), (bench.dim,))
    sites = model.constrain(z)
    sites = sites if isinstance(sites, dict) else {"z": sites}
    index = jnp.array([3, 17, 60])
    rows = tuple(array[index] for array in bench.rows)
    theirs, _ = log_density(seed(bench.numpyro_model, 0), rows, {"num_data": bench.num_data}, sites)
    jacobian = sum(math.log(sites[name]) for name in ("spread", "noise") if name in sites)
    ours = bench.log_joint(z, jax.tree.map(lambda array: array[index], model.data))
    np.testing.assert_allclose(ours, theirs + jacobian, **tolerances.EXACT)


def test_problems_have_the_sizes_that_they_promise(benches):
    sizes = {name: (bench.num_data, bench.dim, bench.full_rank) for name, bench in benches.items()}
    assert sizes["hierarchical"] == (919, 89, True)
    assert sizes["network"] == (300, 4 * models.HIDDEN + 2, True)
    assert sizes["poisson"] == (2000, 20, True)
    assert set(problems.DEFAULT_NAMES) == set(problems.NAMES) - {"d500"}


def test_an_unknown_problem_is_refused():
    with pytest.raises(ValueError, match=r"The problem 'sonnar' is not known.*Did you mean 'sonar'"):
        problems.make_problem("sonnar")


# Gaussians and their ELBO


@pytest.mark.parametrize("full_rank", [False, True])
def test_params_and_gaussians_are_inverse(full_rank):
    family = quell.FullRank(3) if full_rank else quell.MeanField(3)
    scale = jnp.array([[0.5, 0, 0], [0.2, -0.7, 0], [-0.1, 0.4, 0.9]]) if full_rank else jnp.array([0.5, -0.7, 0.9])
    params = params_of(Gaussian(jnp.arange(3.0), scale))
    covariance = scale @ scale.T if full_rank else jnp.diag(scale**2)
    np.testing.assert_allclose(family.covariance_product(params, jnp.eye(3)), covariance, **tolerances.EXACT)
    again = params_of(gaussian_of(params))
    np.testing.assert_allclose(again.scale, params.scale, **tolerances.EXACT)


@pytest.mark.parametrize("full_rank", [False, True])
def test_the_optimum_is_where_the_exact_elbo_has_no_slope(full_rank):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3))
    model = quell.poisson_regression(features, rng.poisson(np.exp(features @ np.array([0.5, -0.3, 0.2]))))
    family = quell.FullRank(3) if full_rank else quell.MeanField(3)
    problem = quell.Problem(model, family)
    found = params_of(best_gaussian(model, full_rank=full_rank))

    @eqx.filter_jit
    def loss(flat):
        return -quell.exact_elbo(problem, unravel(flat))

    flat, unravel = jax.flatten_util.ravel_pytree(family.init())
    search = scipy.optimize.minimize(jax.value_and_grad(loss), flat, jac=True, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(-quell.exact_elbo(problem, found), search.fun, **tolerances.PUBLISHED)
    assert loss(jax.flatten_util.ravel_pytree(found)[0]) >= search.fun - 1e-6


def test_the_paper_problem_has_the_papers_optimum(benches):
    best = best_gaussian(benches["sonar"].problem.model, full_rank=True)
    np.testing.assert_allclose(elbo_of(benches["sonar"], best), -110.038, **tolerances.PUBLISHED)


def test_the_judge_uses_common_draws_and_knows_what_is_not_finite(benches):
    bench = benches["network"]
    here = isotropic(bench.start, 0.05, full_rank=True)
    assert elbo_of(bench, here) == elbo_of(bench, here)
    assert elbo_of(bench, here) > elbo_of(bench, isotropic(bench.start, 1.0, full_rank=True))
    assert elbo_of(bench, Gaussian(here.mean.at[0].set(jnp.nan), here.scale)) == -math.inf
    assert 0 < seconds_of(bench) < 10


# Clock and search, on a runner whose ELBO is a known function of its steps


@pytest.fixture
def ticks(monkeypatch):
    """A clock of our own, which a step moves on by a millisecond."""
    now = [0.0]
    for module in (clock, trial):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


class Descent(AbstractRunner):
    """The gap after n steps is `10 (1 - rate)^n`, and `noise` times the rate that is left.

    A step is a millisecond, and starting a chunk `start_s`.
    """

    label = "made up"
    step_s = 1e-3

    def __init__(self, ticks, axes=None, noise=0.0, start_s=0.0):
        self.ticks, self.axes, self.noise, self.start_s = ticks, axes or {}, noise, start_s
        self.asked, self.started = [], []

    def start(self, key, mean, setting):
        self.started.append(setting)
        return {"step": 0, "rate": setting.get("rate", 0.1), "length": setting.get("length", math.inf)}

    def advance(self, state, until):
        self.ticks[0] += self.start_s + self.step_s * (until - state["step"])
        self.asked.append(until)
        return state | {"step": until}

    def gaussian(self, state):
        rate, step = state["rate"], state["step"]
        gap = 10.0 * (1 - rate) ** step + self.noise * rate * falling(step, state["length"])
        return Gaussian(jnp.array([gap]), jnp.ones(1))


def gap_judge(gaussian):
    return -float(gaussian.mean[0])


GOAL = clock.Goal(gap_judge, 0.0)


def test_a_run_stops_at_a_tenth_of_a_nat_and_knows_the_first_point_within_each_target(ticks):
    runner = Descent(ticks)
    run = clock.timed_run(runner, runner.start(None, None, {}), GOAL, limit=10.0)
    points = [0, *runner.asked]
    first = {nats: next(n for n in points if 10 * 0.9**n <= nats) for nats in clock.TARGETS}
    assert points[:12] == list(range(12)), "single steps at first"
    for nats, n in first.items():
        np.testing.assert_allclose(run.seconds_to(0.0, nats), 1e-3 * n, **tolerances.EXACT)
    assert run.elbos[-1] >= -0.1
    assert points[-1] <= 1.8 * first[0.1], "it does not go on for long"
    assert list(run.seconds) == sorted(run.seconds)


def test_a_dear_judge_is_asked_seldom_and_finds_the_same_points(ticks):
    runner, asked = Descent(ticks), []

    def run(rate, judge_s):
        asked.append(0)

        def judge(gaussian):
            asked[-1] += 1
            return gap_judge(gaussian)

        goal = clock.Goal(judge, 0.0, judge_s=judge_s)
        return clock.timed_run(runner, runner.start(None, None, {"rate": rate}), goal, limit=10.0)

    cheap, dear = run(0.003, 0.0), run(0.003, 1.0)
    for nats in clock.TARGETS:
        np.testing.assert_allclose(dear.seconds_to(0.0, nats), cheap.seconds_to(0.0, nats), **tolerances.EXACT)
    assert asked[1] < asked[0]
    run(1e-9, 20.0)
    assert asked[2] == 1, "once, at the end, where nothing was reached"


def test_a_run_ends_with_its_schedule_its_time_or_where_it_is_not_finite(ticks):
    runner = Descent(ticks)

    def run(judge=gap_judge, rate=1e-6, **limits):
        state = runner.start(None, None, {"rate": rate})
        return clock.timed_run(runner, state, clock.Goal(judge, 0.0), **limits)

    by_steps = run(limit=10.0, most_steps=30)
    assert by_steps.steps[-1] == 30
    assert math.isinf(by_steps.seconds_to(0.0, 1.0))
    assert 0.05 <= run(limit=0.05).seconds[-1] <= 0.056
    assert run(judge=lambda gaussian: -math.inf, limit=10.0).steps[-1] == 5


def test_warming_up_times_a_step_and_stays_within_the_schedule(ticks):
    runner = Descent(ticks, start_s=2e-4)
    key, mean = jax.random.key(0), jnp.zeros(1)
    warm = clock.warm_up(runner, key, mean, {})
    found = warm.compile_s, warm.step_s, warm.start_s
    np.testing.assert_allclose(found, (1.2e-3, 1e-3, 2e-4), **tolerances.EXACT)
    assert runner.asked == [1, 2, 4, 8, 16, 32, *[64] * 7]
    runner.asked = []
    clock.warm_up(runner, key, mean, {"length": 2})
    assert runner.asked == [1, *[2] * 6]
    runner.asked = []
    once = clock.warm_up(runner, key, mean, {"length": 1})
    assert runner.asked == [1]
    assert once.start_s == 0.0, "a method that takes one step would do it again"


def test_what_is_compiled_on_the_way_is_no_time_of_a_step(ticks):
    class Changing(Descent):
        is_compiled = False

        def advance(self, state, until):
            if until > 10 and not self.is_compiled:
                self.ticks[0] += 2.0
                self.is_compiled = True
            return super().advance(state, until)

    slow = Changing(ticks)
    slow.step_s = 0.03
    clock.warm_up(slow, jax.random.key(0), jnp.zeros(1), {})
    assert max(slow.asked) == 4
    type(slow).warm_steps = 25
    clock.warm_up(slow, jax.random.key(0), jnp.zeros(1), {})
    assert max(slow.asked) == 32
    warm = clock.warm_up(Changing(ticks), jax.random.key(0), jnp.zeros(1), {})
    np.testing.assert_allclose((warm.compile_s, warm.step_s), (2.001, 1e-3), **tolerances.EXACT)


def test_a_chunk_is_started_once_on_the_clock(ticks, benches):
    runner, trials = Descent(ticks, start_s=2e-4), Trials(benches["sonar"], GOAL)
    trials.step_seconds(runner)
    runner.asked = []
    run = trials.one(runner, {}, 0, 10.0)
    first = next(n for n in runner.asked if 10 * 0.9**n <= 0.1)
    np.testing.assert_allclose(run.seconds_to(0.0, 0.1), 2e-4 + 1e-3 * first, **tolerances.EXACT)


def test_the_median_is_infinite_when_fewer_than_half_arrive():
    assert median([1.0, math.inf, 3.0]) == 3.0
    assert median([1.0, math.inf]) == math.inf
    assert median([1.0, math.inf, math.inf]) == math.inf


LENGTHS = Axis((20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, math.inf), 3)


@pytest.mark.parametrize("rates", [(0.01, 0.03, 0.1, 0.3), (1e-4, 5e-4, 1e-3, 3e-3, 0.01)])
def test_the_search_finds_the_settings_that_trying_all_finds(benches, ticks, rates):
    runner = Descent(ticks, {"length": LENGTHS, "rate": Axis(rates, 0)}, noise=1 / max(rates))
    trials = Trials(benches["sonar"], GOAL)
    found = search(trials, [runner], budget=60.0, num_seeds=2)
    everything = Trials(benches["sonar"], GOAL)
    for length in LENGTHS.values:
        for rate in rates:
            setting = {"length": length, "rate": rate}
            run = everything.one(runner, setting, 0, 8.0)
            everything._seen[trial._key(runner, setting)] = (trial.Tried(runner, setting, 0.0, (run,), False), 8.0)
    finalists = [one for one in found if one.is_final]
    assert len(finalists) <= 4
    assert all(len(one.runs) == 2 for one in finalists)
    assert found[: len(finalists)] == finalists
    for nats in clock.TARGETS:
        best = everything.best(nats)
        assert math.isfinite(best)
        np.testing.assert_allclose(min(one.seconds_to(0.0, nats) for one in finalists), best, **tolerances.EXACT)


def test_an_entry_takes_the_longest_schedule_that_ends_within_its_round(ticks):
    runner = Descent(ticks, {"length": LENGTHS, "rate": Axis((0.1, 0.3), 0)})
    entries = entries_of([runner])
    assert len(set(entries)) == len(entries) == 4
    falls = Entry(runner, (("rate", 0.3),), is_constant=False)
    assert falls in entries
    assert falls.setting(1e-3, 0.6) == {"rate": 0.3, "length": 500.0}
    assert falls.setting(1e-3, 0.5) == {"rate": 0.3, "length": 200.0}
    assert falls.setting(1.0, 0.5) == {"rate": 0.3, "length": 20.0}
    assert Entry(runner, (("rate", 0.3),), is_constant=True).setting(1e-3, 0.5)["length"] == math.inf
    assert (
        dict(falls.with_lower_rate().chosen) == dict(falls.with_lower_rate().with_lower_rate().chosen) == {"rate": 0.1}
    )
    bare = Entry(Descent(ticks), (), is_constant=False)
    assert bare.setting(1e-3, 0.5) == {}
    assert bare.with_lower_rate() == bare


def test_the_best_of_each_program_goes_on_for_what_is_slow_at_first_may_win(benches, ticks):
    class Late(Descent):
        """Nothing for a second, and then all at once."""

        label = "late"

        def gaussian(self, state):
            return Gaussian(jnp.array([99.0 if state["step"] < 1000 else 0.0]), jnp.ones(1))

    noisy = Descent(ticks, {"rate": Axis(tuple(k / 100 for k in range(1, 41)), 0)}, noise=1e3)
    late = Late(ticks, {"rate": Axis((0.1, 0.2), 0)})
    found = search(Trials(benches["sonar"], GOAL), [noisy, late], budget=60.0, num_seeds=1)
    assert found[0].runner is late
    assert sum(one.runner is late for one in found) == 2
    assert sum(one.runner is noisy for one in found) == 40


def test_each_program_is_run_once_even_without_time(benches, ticks):
    runners = [Descent(ticks, {"rate": Axis((0.01 * k, 0.1), 0)}) for k in range(1, 9)]
    trials = Trials(benches["sonar"], GOAL)
    search(trials, runners, budget=1e-6, num_seeds=1)
    assert all(runner.started for runner in runners)
    assert len(trials.tried) < 16


def test_one_setting_is_run_once_and_with_all_seeds(benches, ticks):
    runner = Descent(ticks)
    (only,) = search(Trials(benches["sonar"], GOAL), [runner], budget=1e-6, num_seeds=3)
    assert len(only.runs) == 3
    assert len(runner.started) == 5, "to warm up, to search, and three times to compare"


def test_a_search_without_time_goes_on_with_the_best_of_what_it_has_tried(benches, ticks):
    runner = Descent(ticks, {"rate": Axis(tuple(1e-6 * k for k in range(1, 101)), 0)})
    trials = Trials(benches["sonar"], GOAL)
    found = search(trials, [runner], budget=10.0, num_seeds=1)
    assert 10 < len(found) < 90
    assert trials.spent < 2 * 10.0
    assert found[0].setting["rate"] == max(one.setting["rate"] for one in found)


def test_a_run_is_stopped_soon_after_the_best_time_and_not_run_again(benches, ticks):
    runner = Descent(ticks, {"rate": Axis((0.01, 0.1, 0.11), 0)})
    trials = Trials(benches["sonar"], GOAL)
    best = trials.run(runner, {"rate": 0.11}, 8.0).seconds_to(0.0, 0.1)
    assert math.isfinite(trials.run(runner, {"rate": 0.1}, 8.0).seconds_to(0.0, 0.1)), "a near tie is seen"
    slow = trials.run(runner, {"rate": 0.01}, 8.0)
    assert math.isinf(slow.seconds_to(0.0, 0.1))
    assert slow.runs[0].seconds[-1] < 1.4 * best
    count = len(runner.started)
    assert trials.run(runner, {"rate": 0.01}, 8.0) is slow
    assert len(runner.started) == count
    assert [one.setting["rate"] for one in trials.ranked(0.1)] == [0.11, 0.1, 0.01]


def test_where_the_optimum_is_not_known_the_best_elbo_seen_takes_its_place(benches, ticks):
    runner = Descent(ticks, {"rate": Axis((0.01, 0.1), 0)})
    trials = Trials(benches["network"], clock.Goal(gap_judge, -2.0, beyond=3.0))
    trials.run(runner, {"rate": 0.1}, 0.2)
    assert -0.01 < trials.optimum <= 0
    assert trials.best(0.1) > 0.04, "the time to a tenth of a nat below what was seen, not below what was known"
    exact = Trials(benches["network"], clock.Goal(gap_judge, -2.0))
    exact.run(runner, {"rate": 0.1}, 0.2)
    assert exact.optimum == -2.0


def test_a_falling_rate_is_constant_for_an_infinite_length():
    np.testing.assert_allclose(falling(jnp.array([0, 50, 100, 200]), 100.0), [1.0, 0.5, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(falling(jnp.array([0, 10**6]), math.inf), [1.0, 1.0], **tolerances.EXACT)


# Our methods


@pytest.mark.parametrize("name", ["sonar", "network"])
def test_our_methods_are_named_and_one_of_them_runs(benches, name):
    bench = benches[name]
    names = [method.name for method in own_methods(bench, quick=True)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("quell ") for name in names)
    assert ("quell S7" in names) == (name == "sonar")
    assert {"quell auto", "quell fixed", "quell base", "quell ensemble", "quell base, more samples"} <= set(names)


@pytest.mark.parametrize(("name", "sets"), [("sonar", 8), ("hierarchical", 16)])
def test_the_fixed_choices_are_all_sets_of_candidates_and_each_comes_once(benches, name, sets):
    problem = benches[name].problem
    found = fixed_options(problem)
    sampled = [one for one in found if one.base is None]
    kinds = {(frozenset(v.name for v in one.variates), one.sampler.num_replicates) for one in sampled}
    assert len(kinds) == len(sampled)
    defaults = {names for names, num in kinds if num == 10}
    assert frozenset(variate.name for variate in quell.default_variates(problem, sampled[0].sampler)) in defaults
    candidates = {variate.name for variate in max((one.variates for one in sampled), key=len)}
    assert len([names for names in defaults if names <= candidates]) == sets
    assert {num for _, num in kinds} == {10, 20, 40}
    assert (frozenset(), 40) in kinds
    assert len(found) - len(sampled) == (1 if name == "sonar" else 3), "the exact gradient, or that of second order"
    assert base_options(problem).variates == ()


def test_a_program_serves_all_settings_and_chunks_do_not_matter(benches):
    bench = benches["sonar"]
    (runner,) = own_methods(bench, ("base",), quick=True)[0].make()
    setting = {"rate": 0.03, "length": 20.0, "scale": 0.1}
    begin = runner.start(jax.random.key(0), bench.start, setting)
    whole = runner.advance(begin, 20)
    parts = runner.advance(runner.advance(begin, 7), 20)
    np.testing.assert_allclose(runner.gaussian(whole).mean, runner.gaussian(parts).mean, **tolerances.EXACT)
    other = runner.start(jax.random.key(1), bench.start, setting | {"rate": 0.1, "length": math.inf})
    runner.advance(other, 5)
    assert runner._advance._cache_size() == 1
    model = bench.problem.model
    optimizer = Hyper(jnp.asarray(0.03), jnp.asarray(20.0)).optimizer()
    options = {"sampler": quell.Sampler(batch_size=100), "optimizer": optimizer, "variates": (), "steps": 20}
    fitted = quell.fit(model, bench.problem.family, key=jax.random.key(0), **options)
    np.testing.assert_allclose(runner.gaussian(whole).mean, fitted.params.loc, **tolerances.RUNS)


# Report


def test_the_report_compares_with_the_fastest_peer_and_takes_the_best_elbo_seen():
    def outcome(method, seconds, *, setting="a", best=-10.0):
        run = clock.Run((0.1, seconds), (1, 100), (-50.0, best))
        return Outcome("made", method, setting, 1.0, (run, run, run), True)

    quiet = outcome("quell auto", 0.5)
    slow, fast = outcome("peer one", 4.0, setting="slow"), outcome("peer one", 2.0, setting="fast", best=-9.95)
    report = Report([quiet, slow, fast], {"made": Reference(-12.0, "best ELBO seen")})
    assert report.optimum("made") == -9.95
    assert report.best("made", "peer one").setting == "fast"
    assert report.fastest_peer("made", 0.1) == 2.0
    assert report.seconds("made", "quell auto", 0.1) == 0.5
    content = json.loads(json.dumps(report.content()))
    row = content["rows"][0]
    assert (row["seconds_to_1_nat"], row["seconds_to_0.1_nat"], row["us_per_step"]) == (0.5, 0.5, 5000.0)
    assert report.comparisons("made") == {"auto than the best peer": {"1 nat": 4.0, "0.1 nat": 4.0}}
    assert sooner_lines(report, "made") == ["Times sooner, auto than the best peer: 4 to 1 nat, 4 to 0.1 nat."]
    assert content["times_sooner"]["made"] == report.comparisons("made")
    exact = Report([quiet], {"made": Reference(-9.0, "exact optimum")})
    assert exact.content()["rows"][0]["seconds_to_0.1_nat"] is None
    assert exact.content()["rows"][0]["final_gap"] == 1.0
    assert exact.comparisons("made") == {"auto than the best peer": {"1 nat": None, "0.1 nat": None}}
    assert sooner_lines(exact, "made") == []
    fixed = Report([quiet, outcome("quell fixed", 0.25)], {"made": Reference(-10.0, "exact optimum")})
    assert fixed.comparisons("made")["auto than the best fixed choice"] == {"1 nat": 0.5, "0.1 nat": 0.5}


# Peers and the command

PEER = """
import jax.numpy as jnp
from experiments.bench.gaussian import Gaussian
from experiments.bench.runner import AbstractRunner, Method


class Guess(AbstractRunner):
    label, axes = "one call", {}

    def start(self, key, mean, setting):
        return mean

    def advance(self, state, until):
        return state

    def gaussian(self, state):
        return Gaussian(state, 0.1 * jnp.eye(state.size))

    def most_steps(self, setting):
        return 1


def methods(bench, quick):
    return [Method("guess", lambda: [Guess()])]
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """One small run of the command, with a peer that can be imported and two that cannot be used."""
    folder, out = tmp_path_factory.mktemp("peers"), tmp_path_factory.mktemp("out") / "new"
    (folder / "guess_peer.py").write_text(PEER)
    (folder / "not_here_peer.py").write_text("import not_here_at_all\n")
    broken = PEER.replace('"guess"', '"broken"').replace("        return mean", "        raise OSError('it broke')")
    (folder / "broken_peer.py").write_text(broken)
    words = ["bench", "--quick", "--seeds", "2", "--peers-dir", str(folder), "--out", str(out)]
    results = [CliRunner().invoke(app, words) for _ in range(2)]
    assert results[0].exit_code == 0, results[0].output
    return SimpleNamespace(first=results[0], second=results[1], out=out, folder=folder)


def test_the_command_writes_the_documented_schema(report):
    content = json.loads((report.out / "bench.json").read_text())
    assert {"rows", "optima", "machine", "versions", "curves", "tried", "seconds", "budget", "times_sooner"} <= set(
        content
    )
    needed = {"problem", "method", "setting", "us_per_step", "compile_s", "final_gap"}
    needed |= {"seconds_to_1_nat", "seconds_to_0.1_nat"}
    assert all(needed <= set(row) for row in content["rows"])
    assert {row["method"] for row in content["rows"]} >= {"quell ensemble", "quell base", "guess"}
    np.testing.assert_allclose(content["optima"]["sonar"]["elbo"], -110.038, **tolerances.PUBLISHED)
    guess = next(row for row in content["rows"] if row["method"] == "guess")
    assert guess["seconds_to_1_nat"] is None
    assert guess["final_gap"] > 10
    assert min(matplotlib.image.imread(report.out / "bench.png").shape[:2]) > 300


def test_the_command_says_what_it_left_out_and_goes_on(report):
    assert re.search(r"Left out not-here: not-here-at-all is not installed. Type `pip install", report.first.stderr)
    assert re.search(r"Left out sonar broken: OSError: it broke", report.first.stderr)
    assert "quell ensemble" in report.first.stdout
    assert report.second.exit_code == 0
    assert "sonar quell base: there from an earlier run" in report.second.stderr
    assert report.second.stderr.count("there from an earlier run") == 4


def test_peers_are_found_by_their_files(report, tmp_path):
    assert peer_names(report.folder) == ["broken", "guess", "not-here"]
    assert load_peer("guess", report.folder).name == "guess"
    assert peer_names(tmp_path) == []


BAD = {
    "--problems sonnar": r"The problem 'sonnar' is not known\. .* Did you mean 'sonar'",
    "--methods bass": r"The method 'bass' is not known\. .* Did you mean 'base'",
    "--peers guez": r"The peer 'guez' is not known\. .* Did you mean 'guess'",
    "--budget 0": r"`budget` was given as 0\. An integer of at least 1 was needed\.",
    "--seeds 0": r"`seeds` was given as 0\. An integer of at least 1 was needed\.",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_options_are_refused(words, report, tmp_path):
    arguments = ["bench", *words.split(), "--peers-dir", str(report.folder), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    printed = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert re.search(BAD[words], printed), printed
    assert not (tmp_path / "out").exists()


def test_without_a_folder_of_peers_one_line_says_so(tmp_path, monkeypatch):
    def stop(plan, names):
        assert plan.peers == []
        raise SystemExit(3)

    monkeypatch.setattr("experiments.bench.command._Plan.run", stop)
    result = CliRunner().invoke(app, ["bench", "--peers-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert "No peers: there are no files of peers in" in result.stderr


def test_our_method_takes_the_steps_of_a_fit_and_looks_where_it_looks(benches, monkeypatch):
    """Also where it changes to another gradient, and however it is cut into chunks."""
    monkeypatch.setattr(method, "MOST_NOISE", 0.0)
    seen, check = [], method.Method.after_noise_check
    monkeypatch.setattr(
        method.Method, "after_noise_check", lambda self, *args: seen.append(args[-1]) or check(self, *args)
    )
    rng = np.random.default_rng(1)
    data = {"x": jnp.asarray(rng.normal(size=(40, 2))), "y": jnp.asarray(rng.normal(size=40))}
    curved = quell.Model(
        lambda z, rows: -jnp.log1p((rows["y"] - jnp.tanh(rows["x"] @ z)) ** 2), quell.NormalPrior(), data, jnp.zeros(2)
    )
    problem, options, key = quell.Problem(curved, quell.FullRank(2)), FitOptions(steps=50), jax.random.key(3)
    bench = dataclasses.replace(benches["sonar"], problem=problem, start=jnp.zeros(2))
    runner = FitRunner(bench, options)
    state = runner.start(key, bench.start, {})
    for until in (1, 23, 30, 50):
        state = runner.advance(state, until)
    params = params_of(isotropic(bench.start, START_SCALE, full_rank=True))
    result = quell.fit(problem.model, problem.family, steps=50, params=params, key=key)
    assert result.choice.base == state.base == "sampled"
    for one, other in zip(state.loop.params, result.params, strict=True):
        np.testing.assert_allclose(one, other, **tolerances.RUNS)
    norms = result.history.base_sq_norm
    np.testing.assert_allclose(seen, [norms[21:24]] * 2, **tolerances.RUNS)
    np.testing.assert_allclose(state.sq_norms, norms[-3:], **tolerances.RUNS)


def test_adam_runs_as_a_fit_does_its_walk_and_its_first_steps_included(benches, monkeypatch):
    monkeypatch.setattr(warm_start, "LEAST_NUMBERS", 10_000)
    monkeypatch.setattr(method, "LARGEST_EXACT", 200)
    monkeypatch.setattr(defaults, "LARGEST_FULL", 200)
    bench, key = benches["poisson"], jax.random.key(4)
    ((ensemble,), (base,)) = (method.make()[:1] for method in own_methods(bench, ("ensemble", "base")))
    assert ensemble.most_steps({"length": 100.0}) == 100 + WARM_UP_STEPS
    assert base.most_steps({"length": 100.0}) == 100
    assert all("from a warm start on 400 rows" in runner.label for runner in (ensemble, base))
    setting = {"rate": 0.01, "length": math.inf, "scale": 0.1}
    state = ensemble.start(key, bench.start, setting)
    for until in (1, 7, 30):
        state = ensemble.advance(state, until)
    params = params_of(isotropic(bench.start, 0.1, full_rank=True))
    options = {"optimizer": optax.adam(0.01), "params": params, "steps": 30, "key": key}
    fitted = quell.fit(bench.problem.model, bench.problem.family, **options)
    for one, other in zip(state.algorithm.params, fitted.params, strict=True):
        np.testing.assert_allclose(one, other, **tolerances.RUNS)
