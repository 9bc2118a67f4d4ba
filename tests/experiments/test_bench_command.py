# SPDX-License-Identifier: Apache-2.0
"""The benchmark's report and its command, with peers that can be used and peers that cannot."""

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

import tolerances
from experiments.bench.clock import TimedRun
from experiments.bench.commands import app, sooner_lines
from experiments.bench.experiment import Outcome
from experiments.bench.peers import load_peer, peer_names
from experiments.bench.reference import Reference
from experiments.bench.report import Report

pytestmark = pytest.mark.slow


def test_the_report_compares_with_the_fastest_peer_and_takes_the_best_elbo_seen():
    def outcome(method, seconds, *, setting="a", best=-10.0):
        run = TimedRun((0.1, seconds), (1, 100), (-50.0, best))
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
    assert (row["cold_seconds_to_1_nat"], row["cold_seconds_to_0.1_nat"]) == (1.5, 1.5)
    whole = dataclasses.replace(quiet, cold_s=0.7)
    assert whole.cold_seconds_to(-10.0, 1.0) == 0.7
    assert math.isinf(whole.cold_seconds_to(-9.0, 0.1)), "a fit that ends elsewhere has not arrived"
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
    words = ["--quick", "--seeds", "2", "--peers-dir", str(folder), "--out", str(out)]
    results = [CliRunner().invoke(app, words) for _ in range(2)]
    assert results[0].exit_code == 0, results[0].output
    return SimpleNamespace(first=results[0], second=results[1], out=out, folder=folder)


def test_the_command_writes_the_documented_schema(report):
    content = json.loads((report.out / "bench.json").read_text())
    assert {"rows", "optima", "machine", "versions", "curves", "tried", "seconds", "budget", "times_sooner"} <= set(
        content
    )
    needed = {"problem", "method", "setting", "us_per_step", "compile_s", "final_gap"}
    needed |= {"seconds_to_1_nat", "seconds_to_0.1_nat", "cold_seconds_to_1_nat", "cold_seconds_to_0.1_nat"}
    assert all(needed <= set(row) for row in content["rows"])
    assert {row["method"] for row in content["rows"]} >= {"quell ensemble", "quell base", "guess"}
    np.testing.assert_allclose(content["optima"]["sonar"]["elbo"], -110.038, **tolerances.PUBLISHED)
    guess = next(row for row in content["rows"] if row["method"] == "guess")
    assert guess["seconds_to_1_nat"] is None
    assert guess["final_gap"] > 10
    assert min(matplotlib.image.imread(report.out / "bench.png").shape[:2]) > 300


def test_the_command_says_what_it_left_out_and_goes_on(report):
    assert re.search(r"Left out not-here: not-here-at-all is not installed; try `pip install", report.first.stderr)
    assert re.search(r"Left out sonar broken: OSError: it broke", report.first.stderr)
    assert "quell ensemble" in report.first.stdout
    assert report.second.exit_code == 0
    assert "sonar quell base: kept by an earlier run" in report.second.stderr
    assert report.second.stderr.count("kept by an earlier run") == 4


def test_peers_are_found_by_their_files(report, tmp_path):
    assert peer_names(report.folder) == ["broken", "guess", "not-here"]
    assert load_peer("guess", report.folder).name == "guess"
    assert peer_names(tmp_path) == []


BAD = {
    "--problems sonnar": r"problem.*'sonnar'.*'sonar'",
    "--methods bass": r"method.*'bass'.*'base'",
    "--peers guez": r"peer.*'guez'.*'guess'",
    "--budget 0": r"`budget`.* 0",
    "--seeds 0": r"`seeds`.* 0",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_options_are_refused(words, report, tmp_path):
    arguments = [*words.split(), "--peers-dir", str(report.folder), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    printed = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert re.search(BAD[words], printed), printed
    assert not (tmp_path / "out").exists()


def test_without_files_of_peers_one_line_says_so(tmp_path):
    words = ["--peers-dir", str(tmp_path), "--problems", "australian", "--data-dir", str(tmp_path / "no")]
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / "australian.csv").write_text("not,the,data\n1,2,3\n")
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2, "these are not the published data"
    assert f"No peers: there are no files `NAME_peer.py` in {tmp_path}" in result.stderr
