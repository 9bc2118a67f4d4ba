# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.paper table1`: its numbers, its files, its errors."""

import json
import re
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

import quell
import tolerances
from experiments.paper import protocol
from experiments.paper.commands import app
from quell.paper import datasets

SCHEMA = {
    "dataset": str,
    "num_data": int,
    "learning_rate": float,
    "variates": str,
    "runs": int,
    "steps": int,
    "elbo_mean": float,
    "elbo_stderr": float,
    "optimum": float,
    "paper": float,
    "seconds": float,
}


def _run(*words):
    return CliRunner().invoke(app, ["table1", *(str(word) for word in words)])


def _no_download():
    raise OSError("no network")


@pytest.fixture(scope="module")
def no_australian(tmp_path_factory):
    """Nowhere to find `australian`, and no network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("QUELL_DATA_DIR", raising=False)
        patch.setattr(datasets, "_download", _no_download)
        yield


@pytest.fixture(scope="module")
def report(no_australian, tmp_path_factory):
    """One small run of the command: what it printed and what it wrote."""
    out = tmp_path_factory.mktemp("out") / "new" / "folder"
    words = ["--datasets", "australian,sonar", "--variates", "none,c7", "--runs", 2, "--steps", 20, "--seed", 5]
    result = _run(*words, "--out", out)
    assert result.exit_code == 0, result.output
    table = json.loads((out / "table1.json").read_text())
    return SimpleNamespace(result=result, table=table, out=out, rows=table["rows"])


@pytest.mark.slow
def test_table1_writes_the_documented_schema(report):
    assert {"rows", "seconds", "settings"} <= set(report.table)
    assert [row["variates"] for row in report.rows] == ["none", "c7"]
    for row in report.rows:
        assert {name: type(row.get(name)) for name in SCHEMA} == SCHEMA
        assert row["dataset"] == "sonar"
        assert (row["num_data"], row["runs"], row["steps"], row["learning_rate"]) == (208, 2, 20, 0.2)
        assert 0 < row["seconds"] <= report.table["seconds"]
        np.testing.assert_allclose(row["optimum"], -110.038, **tolerances.PUBLISHED)
    assert [row["paper"] for row in report.rows] == [-442.4, -120.2]
    settings = report.table["settings"]
    assert (settings["runs"], settings["steps"], settings["seed"]) == (2, 20, 5)


@pytest.mark.slow
def test_table1_reports_the_runs_of_the_protocol(report):
    problem = protocol.paper_problem(quell.paper.load("sonar"))
    gradient = protocol.paper_gradient(problem, "c7")
    final = protocol.elbo_curves(gradient, learning_rates=[0.2], num_runs=2, num_steps=20, seed=5)[0, :, -1]
    row = report.rows[1]
    np.testing.assert_allclose(row["elbo_mean"], final.mean(), **tolerances.RUNS)
    np.testing.assert_allclose(row["elbo_stderr"], abs(final[0] - final[1]) / 2, **tolerances.RUNS)
    assert row["elbo_mean"] < row["optimum"]


@pytest.mark.slow
def test_table1_prints_our_figures_beside_the_papers(report):
    printed = report.result.stdout
    assert "sonar (0.2)" in printed
    assert "-110.0" in printed
    for row in report.rows:
        assert f"{row['elbo_mean']:.1f} ± {row['elbo_stderr']:.1f}" in printed
        assert f"({row['paper']:.1f})" in printed
    assert "table1.json" in printed


@pytest.mark.slow
def test_table1_draws_a_picture(report):
    picture = matplotlib.image.imread(report.out / "table1.png")
    assert min(picture.shape[:2]) > 300
    drawn = (picture[..., :3] < 0.9).any(axis=-1)
    assert 0.005 < drawn.mean() < 0.5, "lines on a light ground"
    pixels = 255 * picture[drawn][:, :3]
    for colour in ((0x1A, 0x1A, 0x1A), (0xCC, 0x79, 0xA7)):  # of `none` and of `c7`, in a palette of few colours
        assert np.abs(pixels - colour).max(axis=1).min() < 10


@pytest.mark.slow
def test_an_unavailable_data_set_is_left_out_in_one_line(report):
    lines = [line for line in report.result.stderr.splitlines() if "australian" in line]
    assert len(lines) == 1
    assert re.match(r"Left out australian: .*no network.*'quell\[datasets\]'.*export QUELL_DATA_DIR=DIR", lines[0])


@pytest.mark.usefixtures("no_australian")
def test_nothing_left_to_run_is_a_failure(tmp_path):
    result = _run("--datasets", "australian", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert "Left out australian" in result.stderr
    assert not (tmp_path / "out").exists()


BAD = {
    "--datasets sonnar": r"data set.*'sonnar'.*'sonar'",
    "--datasets sonar,iono": r"data set.*'iono'.*'ionosphere'",
    "--variates S8": r"ensemble must be one of none, S4, .*'S8'.*'S7'",
    "--variates none,c77": r"ensemble.*'c77'.*'c7'",
    "--variates ,": r"ensemble.*','",
    "--runs 0": r"`runs`.* 0",
    "--steps 0": r"`steps`.* 0",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_options_are_refused_before_anything_is_run(words, tmp_path):
    result = _run(*words.split(), "--out", tmp_path / "out")
    assert result.exit_code == 2
    printed = " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())
    assert re.search(BAD[words], printed), printed
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_number_of_runs():
    problem = protocol.paper_problem(quell.paper.load("ionosphere"))
    gradient = protocol.paper_gradient(problem, "c7")
    options = {"learning_rates": [0.4], "num_steps": 20, "seed": 3}
    one, three = (protocol.elbo_curves(gradient, num_runs=num, **options) for num in (1, 3))
    assert one.shape == (1, 1, 3)
    assert three.shape == (1, 3, 3)
    np.testing.assert_allclose(one[:, 0], three[:, 0], **tolerances.RUNS)
    assert len(set(three[0, :, -1].tolist())) == 3, "each run has draws of its own"
    assert len(set(three[0, :, 0].tolist())) == 1, "all runs start at the same place"
