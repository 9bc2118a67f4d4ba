# SPDX-License-Identifier: Apache-2.0
"""The benchmark's clock and search, on a runner whose ELBO is a known function of its steps."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tolerances
from experiments.bench import clock, problems, trial
from experiments.bench.adam_runner import cosine_decay
from experiments.bench.gaussian import Gaussian
from experiments.bench.runner import AbstractRunner, Axis
from experiments.bench.search import search
from experiments.bench.successive_halving import Candidate, candidates_of
from experiments.bench.trial import Trials, median

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bench():
    return problems.make_problem("sonar")


@pytest.fixture
def ticks(monkeypatch):
    """A clock of our own, which a step moves on by a millisecond."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
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
        gap = 10.0 * (1 - rate) ** step + self.noise * rate * cosine_decay(step, state["length"])
        return Gaussian(jnp.array([gap]), jnp.ones(1))


def gap_elbo(gaussian):
    return -float(gaussian.mean[0])


GOAL = clock.Goal(gap_elbo, 0.0)


def test_a_run_stops_at_a_tenth_of_a_nat_and_knows_the_first_point_within_each_target(ticks):
    runner = Descent(ticks)
    run = clock.time_run(runner, runner.start(None, None, {}), GOAL, limit=10.0)
    points = [0, *runner.asked]
    first = {nats: next(n for n in points if 10 * 0.9**n <= nats) for nats in clock.TARGETS}
    assert points[:12] == list(range(12)), "single steps at first"
    for nats, n in first.items():
        np.testing.assert_allclose(run.seconds_to(0.0, nats), 1e-3 * n, **tolerances.EXACT)
    assert run.elbos[-1] >= -0.1
    assert points[-1] <= 1.8 * first[0.1], "it does not go on for long"
    assert list(run.seconds) == sorted(run.seconds)


def test_a_slow_elbo_is_evaluated_seldom_and_finds_the_same_points(ticks):
    runner, asked = Descent(ticks), []

    def run(rate, elbo_s):
        asked.append(0)

        def elbo(gaussian):
            asked[-1] += 1
            return gap_elbo(gaussian)

        goal = clock.Goal(elbo, 0.0, elbo_s=elbo_s)
        return clock.time_run(runner, runner.start(None, None, {"rate": rate}), goal, limit=10.0)

    cheap, dear = run(0.003, 0.0), run(0.003, 1.0)
    for nats in clock.TARGETS:
        np.testing.assert_allclose(dear.seconds_to(0.0, nats), cheap.seconds_to(0.0, nats), **tolerances.EXACT)
    assert asked[1] < asked[0]
    run(1e-9, 20.0)
    assert asked[2] == 1, "once, at the end, where nothing was reached"


def test_a_run_ends_with_its_schedule_its_time_or_where_it_is_not_finite(ticks):
    runner = Descent(ticks)

    def run(elbo=gap_elbo, rate=1e-6, **limits):
        state = runner.start(None, None, {"rate": rate})
        return clock.time_run(runner, state, clock.Goal(elbo, 0.0), **limits)

    by_steps = run(limit=10.0, most_steps=30)
    assert by_steps.steps[-1] == 30
    assert math.isinf(by_steps.seconds_to(0.0, 1.0))
    assert 0.05 <= run(limit=0.05).seconds[-1] <= 0.056
    assert run(elbo=lambda gaussian: -math.inf, limit=10.0).steps[-1] == 5


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


def test_a_chunk_is_started_once_on_the_clock(ticks, bench):
    runner, trials = Descent(ticks, start_s=2e-4), Trials(bench, GOAL)
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
def test_the_search_finds_the_settings_that_trying_all_finds(bench, ticks, rates):
    runner = Descent(ticks, {"length": LENGTHS, "rate": Axis(rates, 0)}, noise=1 / max(rates))
    trials = Trials(bench, GOAL)
    found = search(trials, [runner], budget=60.0, num_seeds=2)
    everything = Trials(bench, GOAL)
    for length in LENGTHS.values:
        for rate in rates:
            setting = {"length": length, "rate": rate}
            run = everything.one(runner, setting, 0, 8.0)
            everything._seen[trial._key(runner, setting)] = (trial.Trial(runner, setting, 0.0, (run,), False), 8.0)
    finalists = [one for one in found if one.is_final]
    assert len(finalists) <= 4
    assert all(len(one.runs) == 2 for one in finalists)
    assert found[: len(finalists)] == finalists
    for nats in clock.TARGETS:
        best = everything.best(nats)
        assert math.isfinite(best)
        np.testing.assert_allclose(min(one.seconds_to(0.0, nats) for one in finalists), best, **tolerances.EXACT)


def test_a_candidate_takes_the_longest_schedule_that_ends_within_its_round(ticks):
    runner = Descent(ticks, {"length": LENGTHS, "rate": Axis((0.1, 0.3), 0)})
    candidates = candidates_of([runner])
    assert len(set(candidates)) == len(candidates) == 4
    falls = Candidate(runner, (("rate", 0.3),), is_constant=False)
    assert falls in candidates
    assert falls.setting(1e-3, 0.6) == {"rate": 0.3, "length": 500.0}
    assert falls.setting(1e-3, 0.5) == {"rate": 0.3, "length": 200.0}
    assert falls.setting(1.0, 0.5) == {"rate": 0.3, "length": 20.0}
    assert Candidate(runner, (("rate", 0.3),), is_constant=True).setting(1e-3, 0.5)["length"] == math.inf
    assert (
        dict(falls.with_lower_rate().chosen) == dict(falls.with_lower_rate().with_lower_rate().chosen) == {"rate": 0.1}
    )
    bare = Candidate(Descent(ticks), (), is_constant=False)
    assert bare.setting(1e-3, 0.5) == {}
    assert bare.with_lower_rate() == bare


def test_the_best_setting_of_each_program_goes_on_since_it_may_win_late(bench, ticks):
    class Late(Descent):
        """Nothing for a second, and then all at once."""

        label = "late"

        def gaussian(self, state):
            return Gaussian(jnp.array([99.0 if state["step"] < 1000 else 0.0]), jnp.ones(1))

    noisy = Descent(ticks, {"rate": Axis(tuple(k / 100 for k in range(1, 41)), 0)}, noise=1e3)
    late = Late(ticks, {"rate": Axis((0.1, 0.2), 0)})
    found = search(Trials(bench, GOAL), [noisy, late], budget=60.0, num_seeds=1)
    assert found[0].runner is late
    assert sum(one.runner is late for one in found) == 2
    assert sum(one.runner is noisy for one in found) == 40


def test_each_program_is_run_once_even_without_time(bench, ticks):
    runners = [Descent(ticks, {"rate": Axis((0.01 * k, 0.1), 0)}) for k in range(1, 9)]
    trials = Trials(bench, GOAL)
    search(trials, runners, budget=1e-6, num_seeds=1)
    assert all(runner.started for runner in runners)
    assert len(trials.all) < 16


def test_one_setting_is_run_once_and_with_all_seeds(bench, ticks):
    runner = Descent(ticks)
    (only,) = search(Trials(bench, GOAL), [runner], budget=1e-6, num_seeds=3)
    assert len(only.runs) == 3
    assert len(runner.started) == 5, "to warm up, to search, and three times to compare"


def test_a_search_without_time_goes_on_with_the_best_of_what_it_has_tried(bench, ticks):
    runner = Descent(ticks, {"rate": Axis(tuple(1e-6 * k for k in range(1, 101)), 0)})
    trials = Trials(bench, GOAL)
    found = search(trials, [runner], budget=10.0, num_seeds=1)
    assert 10 < len(found) < 90
    assert trials.spent < 2 * 10.0
    assert found[0].setting["rate"] == max(one.setting["rate"] for one in found)


def test_a_run_is_stopped_soon_after_the_best_time_and_not_run_again(bench, ticks):
    runner = Descent(ticks, {"rate": Axis((0.01, 0.1, 0.11), 0)})
    trials = Trials(bench, GOAL)
    best = trials.run(runner, {"rate": 0.11}, 8.0).seconds_to(0.0, 0.1)
    assert math.isfinite(trials.run(runner, {"rate": 0.1}, 8.0).seconds_to(0.0, 0.1)), "a near tie is seen"
    slow = trials.run(runner, {"rate": 0.01}, 8.0)
    assert math.isinf(slow.seconds_to(0.0, 0.1))
    assert slow.runs[0].seconds[-1] < 1.4 * best
    count = len(runner.started)
    assert trials.run(runner, {"rate": 0.01}, 8.0) is slow
    assert len(runner.started) == count
    assert [one.setting["rate"] for one in trials.ranked(0.1)] == [0.11, 0.1, 0.01]


def test_where_the_optimum_is_not_known_the_best_elbo_seen_takes_its_place(bench, ticks):
    runner = Descent(ticks, {"rate": Axis((0.01, 0.1), 0)})
    trials = Trials(bench, clock.Goal(gap_elbo, -2.0, beyond=3.0))
    trials.run(runner, {"rate": 0.1}, 0.2)
    assert -0.01 < trials.optimum <= 0
    assert trials.best(0.1) > 0.04, "the time to a tenth of a nat below what was seen, not below what was known"
    exact = Trials(bench, clock.Goal(gap_elbo, -2.0))
    exact.run(runner, {"rate": 0.1}, 0.2)
    assert exact.optimum == -2.0
