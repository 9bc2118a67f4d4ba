# SPDX-License-Identifier: Apache-2.0
"""Large models, here small ones of the same kind: methods, the judge of all, and what is said of them together."""

import json

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import quell
from experiments.bench.commands import app
from experiments.bench.large import commands
from experiments.bench.large.compare import best, compare, moment_errors
from experiments.bench.large.judge import elbos
from experiments.bench.large.methods import load
from experiments.bench.large.methods.base import Clock, flat
from experiments.bench.large.models import MODELS
from experiments.bench.posteriordb.commands import is_installed

SETTING = {"rate": 0.03, "share": 1.0}


@pytest.fixture(scope="module")
def small():
    return MODELS["noise-scale"](2000)


class Ticks(Clock):
    """A clock that goes on with each look at it, so that nothing depends on the machine."""

    def __init__(self, seconds):
        self.seconds, self.ticks = seconds, 0

    @property
    def now(self):
        self.ticks += 1
        return float(self.ticks)


def run(method, large, seconds=1):
    return load(method)(large, jax.random.key(0), Ticks(seconds), SETTING)


def stacked(found):
    return np.stack([look.mean for look in found.looks]), np.stack([look.root for look in found.looks])


def test_of_runs_that_are_as_good_the_soonest_counts():
    records = [{"seconds": [1.0, at], "elbos": [-9.0, -2.0]} for at in (5.0, 4.0, 6.0)]
    assert best(records) == (-2.0, 4.0)
    assert best([{"seconds": [1.0], "elbos": [None]}]) is None


@pytest.mark.parametrize("method", ["quell-mf", "quell-full"])
def test_the_judge_finds_the_elbo_that_the_fit_has(small, method):
    found = run(method, small)
    values, error, is_exact = elbos(small, *stacked(found))
    model = quell.from_numpyro(small.model, **small.data)
    family = (quell.MeanField if method == "quell-mf" else quell.FullRank)(model.dim)
    result = quell.fit(model, family, key=jax.random.key(0))
    assert is_exact
    assert error == 0
    np.testing.assert_allclose(values, [result.final_elbo.value], atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["numpyro-svi", "numpyro-svi-rows", "numpyro-svi-full", "numpyro-svi-full-rows", "blackjax-vi"]
)
def test_peers_come_near_in_the_same_coordinates(small, method):
    """An order of the latents that was mixed up would cost thousands of nats."""
    if not is_installed(method, load):
        pytest.skip("not installed")
    best = elbos(small, *stacked(run("quell-full", small)))[0][0]
    found = run(method, small, 600)
    values, *_ = elbos(small, *stacked(found))
    assert best - 20 < values[-1] < best + 0.01
    assert [look.seconds for look in found.looks] == sorted(look.seconds for look in found.looks)


@pytest.mark.slow
def test_nuts_agrees_with_the_fit_and_with_linear_response(small):
    reference, ours = run("nuts", small), run("quell-mf", small)
    assert reference.facts["largest_rhat"] < 1.05
    (mean, sd), (other, own) = ((look.mean, look.root) for look in (reference.looks[-1], ours.looks[-1]))
    assert np.max(np.abs(mean - other) / sd) < 0.3
    assert np.max(np.abs(own / sd - 1)) < 0.15
    np.testing.assert_allclose(ours.arrays["response_sd"], sd[ours.arrays["places"]], rtol=0.15)


def test_sites_are_flattened_by_name():
    np.testing.assert_array_equal(flat({"b": np.ones(2), "a": np.zeros((2, 1))}), [0, 0, 1, 1])


def record(method, seconds, values, **more):
    facts = {"model": "polls", "dim": 1000, "peak_mb": 10, "status": "completed"}
    return {**facts, "method": method, "seconds": seconds, "elbos": values, **more}


def test_near_is_a_nat_for_each_thousand_latents():
    records = [
        record("numpyro-svi", [1.0, 2.0], [-12.0, -10.9], setting={"rate": 0.01}),
        record("numpyro-svi", [0.5, 1.5], [-12.0, -11.0], setting={"rate": 0.03}, peak_mb=12),
        record("quell-mf", [0.2], [-10.0]),
        {"model": "polls", "method": "dadvi", "status": "not finished in 5 s"},
    ]
    rows = {row["method"]: row for row in compare(records)}
    assert list(rows) == ["quell-mf", "numpyro-svi", "dadvi"]
    assert (rows["quell-mf"]["elbo"], rows["quell-mf"]["near"]) == (-10.0, 0.2)
    assert (rows["numpyro-svi"]["elbo"], rows["numpyro-svi"]["seconds"]) == (-10.9, 2.0)
    assert rows["numpyro-svi"]["near"] == 1.5
    assert rows["numpyro-svi"]["peak_mb"] == 12
    assert rows["dadvi"]["near"] is None
    assert rows["dadvi"]["status"] == "not finished in 5 s"


def test_errors_are_those_of_the_last_look_in_units_of_the_reference():
    reference = {"means": np.array([[0.0, 1.0]]), "roots": np.array([[2.0, 1.0]])}
    found = {"means": np.array([[9.0, 9.0], [1.0, 1.0]]), "roots": np.array([[9.0, 9.0], [1.0, 1.0]])}
    found |= {"places": np.array([0]), "response_sd": np.array([1.9])}
    errors = moment_errors(found, reference)
    assert errors == {
        "mean_rms": pytest.approx(0.3536, abs=1e-4),
        "mean_largest": 0.5,
        "sd_median": 0.25,
        "sd_of_some": 0.5,
        "response": pytest.approx(0.05),
        "response_largest": pytest.approx(0.05),
    }


def test_the_command_writes_a_file_and_a_page_and_resumes(tmp_path, monkeypatch):
    lines = []

    def made_up(arguments, timeout, environment):
        lines.append(arguments)
        if arguments[0] == "judge":
            return {"elbos": [-10.0]}
        path = arguments[arguments.index("--out") + 1]
        np.savez(path, seconds=[1.5], means=np.zeros((1, 3)), roots=np.ones((1, 3)))
        return {"dim": 3, "peak_mb": 100, "status": "CONVERGED", "largest_rhat": 1.0}

    monkeypatch.setattr(commands, "_line_of", made_up)
    words = ["large", "--models", "polls", "--methods", "quell-mf,nuts", "--out", str(tmp_path)]
    first, second = (CliRunner().invoke(app, words) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert second.exit_code == 0, second.output
    assert [line[0] for line in lines] == ["run", "judge", "run"]  # none of the second
    ours, nuts = json.loads((tmp_path / "large.json").read_text())["records"]
    assert ours["elbos"] == [-10.0]
    assert ours["seconds"] == [1.5]
    assert ours["errors"]["mean_rms"] == 0
    assert "errors" not in nuts
    assert "quell-mf" in (tmp_path / "benchmark.html").read_text()


@pytest.mark.parametrize("words", [["--models", "pols"], ["--methods", "quel"], ["--seconds", "0"]])
def test_bad_words_are_refused(tmp_path, words):
    assert CliRunner().invoke(app, ["large", "--out", str(tmp_path), *words]).exit_code == 2
