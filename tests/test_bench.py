# SPDX-License-Identifier: Apache-2.0
"""The benchmark: its problems are what they say, its clock and its search find the right things, its command works."""

import json
import math
import re
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
import scipy.optimize
from numpyro.handlers import seed
from numpyro.infer.util import log_density
from typer.testing import CliRunner

import quell
import tolerances
from quell.bench import clock, models, problems
from quell.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from quell.bench.judge import elbo_of
from quell.bench.methods import Hyper, falling, own_methods
from quell.bench.optimum import best_gaussian
from quell.bench.peers import load_peer, peer_names
from quell.bench.piece import Outcome
from quell.bench.reference import Reference
from quell.bench.report import Report
from quell.bench.runner import AbstractRunner, Axis, Method
from quell.bench.search import Search, median
from quell.cli.app import app

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


# Clock and search, on a runner whose ELBO is a known function of its steps


@pytest.fixture
def ticks(monkeypatch):
    """A clock of our own, which a step moves on by a millisecond."""
    now = [0.0]
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


class Descent(AbstractRunner):
    """The gap after n steps is `10 (1 - rate)^n`; each step takes a millisecond."""

    label = "made up"

    def __init__(self, ticks, axes=None):
        self.ticks, self.axes = ticks, axes or {}
        self.asked = []

    def start(self, key, mean, setting):
        return {"step": 0, "rate": setting.get("rate", 0.1)}

    def advance(self, state, until):
        self.ticks[0] += 1e-3 * (until - state["step"])
        self.asked.append(until)
        return state | {"step": until}

    def gaussian(self, state):
        return Gaussian(jnp.array([10.0 * (1 - state["rate"]) ** state["step"]]), jnp.ones(1))


def gap_judge(gaussian):
    return -float(gaussian.mean[0])


def test_a_run_stops_at_a_tenth_of_a_nat_and_knows_the_first_point_within_each_target(ticks):
    runner = Descent(ticks)
    run = clock.timed_run(runner, runner.start(None, None, {}), gap_judge, optimum=0.0, limit=10.0)
    points = [0, *runner.asked]
    first = {nats: next(n for n in points if 10 * 0.9**n <= nats) for nats in clock.TARGETS}
    assert points[:12] == list(range(12)), "single steps at first"
    for nats, n in first.items():
        np.testing.assert_allclose(run.seconds_to(0.0, nats), 1e-3 * n, **tolerances.EXACT)
    assert run.elbos[-1] >= -0.1
    assert points[-1] <= 1.8 * first[0.1], "it does not go on for long"
    assert list(run.seconds) == sorted(run.seconds)


def test_a_run_ends_with_its_schedule_its_time_or_where_it_is_not_finite(ticks):
    runner = Descent(ticks)

    def run(judge=gap_judge, rate=1e-6, **limits):
        state = runner.start(None, None, {"rate": rate})
        return clock.timed_run(runner, state, judge, optimum=0.0, **limits)

    by_steps = run(limit=10.0, most_steps=30)
    assert by_steps.steps[-1] == 30
    assert math.isinf(by_steps.seconds_to(0.0, 1.0))
    assert 0.05 <= run(limit=0.05).seconds[-1] <= 0.056
    assert run(judge=lambda gaussian: -math.inf, limit=10.0).steps[-1] == 5


def test_the_median_is_infinite_when_fewer_than_half_arrive():
    assert median([1.0, math.inf, 3.0]) == 3.0
    assert median([1.0, math.inf]) == math.inf
    assert median([1.0, math.inf, math.inf]) == math.inf


def test_the_search_climbs_to_the_best_setting_and_runs_it_with_other_seeds(benches, ticks):
    runner = Descent(ticks, {"rate": Axis((0.02, 0.05, 0.1, 0.2, 0.4), 1)})
    search = Search(benches["sonar"], gap_judge, 0.0, budget=20.0)
    tried = search.run(Method("made up", lambda: [runner]), num_seeds=2)
    assert tried[0].setting == {"rate": 0.4}
    assert tried[0].is_final
    assert len(tried[0].runs) == 2
    assert {one.setting["rate"] for one in tried} == {0.05, 0.1, 0.2, 0.4}


def test_a_run_slower_than_the_best_so_far_is_abandoned(benches, ticks):
    runner = Descent(ticks, {"rate": Axis((0.05, 0.1, 0.2, 0.4), 3)})
    search = Search(benches["sonar"], gap_judge, 0.0, budget=20.0)
    best, slow = search.run(Method("made up", lambda: [runner]), num_seeds=1)
    assert (best.setting["rate"], slow.setting["rate"]) == (0.4, 0.2)
    assert math.isinf(slow.score(0.0)[0])
    assert not slow.is_final


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
    assert {"quell auto", "quell base", "quell ensemble", "quell base, more samples"} <= set(names)


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
    exact = Report([quiet], {"made": Reference(-9.0, "exact optimum")})
    assert exact.content()["rows"][0]["seconds_to_0.1_nat"] is None
    assert exact.content()["rows"][0]["final_gap"] == 1.0


# Peers and the command

PEER = """
import jax.numpy as jnp
from quell.bench.gaussian import Gaussian
from quell.bench.runner import AbstractRunner, Method


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
    assert {"rows", "optima", "machine", "versions", "curves", "tried", "seconds"} <= set(content)
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

    monkeypatch.setattr("quell.cli.bench._Plan.run", stop)
    result = CliRunner().invoke(app, ["bench", "--peers-dir", str(tmp_path / "none"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 3
    assert "No peers: there are no files of peers in" in result.stderr
