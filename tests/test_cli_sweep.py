# SPDX-License-Identifier: Apache-2.0
"""`quell sweep`: from two files to a table, a picture and a command for the best, and every way that can go wrong."""

import json
import re

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import quell
import tolerances
from model_files import write_files
from quell.cli import sweep as command
from quell.cli.app import app
from quell.cli.fit_settings import FitSettings
from quell.fit.driver import run_plan
from quell.fit.progress import progress_bar

MODELS = """
import jax.numpy as jnp
import quell

def line(x, y):
    return quell.gaussian_regression(x[:, None], y, noise=0.5)

def broken(x, y):
    return quell.Model(lambda z, row: jnp.zeros((7, 7)), quell.NormalPrior(), x, 1)
"""


@pytest.fixture
def files(tmp_path):
    return write_files(tmp_path, MODELS)


def _sweep(files, *words, model="line", **options):
    defaults = {
        "data": files.data,
        "family": "meanfield",
        "steps": 20,
        "seeds": 2,
        "rates": "0.01,0.1",
        "out": files.out,
    }
    given = [
        word for name, value in (defaults | {"subsets": "none"} | options).items() for word in (f"--{name}", value)
    ]
    return CliRunner().invoke(app, ["sweep", f"{files.models}:{model}", *map(str, given), *words])


def _printed(result):
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.output).split())


def test_a_sweep_leaves_table_figure_and_results_and_a_second_run_goes_on(files):
    result = _sweep(files)
    assert result.exit_code == 0, result.output
    names = {path.name for path in files.out.iterdir()}
    assert {"sweep-settings.json", "sweep.json", "sweep.csv", "sweep.png"} < names
    assert len(names) == 5
    assert (files.out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((files.out / "sweep.json").read_text())["rows"]
    assert [(row["subset"], row["learning_rate"], len(row["elbos"])) for row in rows] == [
        ("none", 0.01, 2),
        ("none", 0.1, 2),
    ]
    assert "ELBO after 20 steps, 2 seeds" in result.stdout
    assert f"{rows[1]['median']:.2f}" in result.stdout
    best = max(rows, key=lambda row: row["median"])
    assert f"--learning-rate {best['learning_rate']} --variates none --out fit" in _printed(result)
    assert "none: 4 fits in" in result.stderr
    again = _sweep(files)
    assert again.exit_code == 0
    assert "none: finished in an earlier run" in again.stderr
    assert json.loads((files.out / "sweep.json").read_text())["rows"] == rows


def test_a_fit_of_the_sweep_is_that_of_quell_fit_at_its_rate(files, monkeypatch):
    """With so many steps a fit that chooses its variates would warm up; one whose variates are named does not."""
    assert _sweep(files, rates="0.1", seeds=1, steps=30).exit_code == 0
    (row,) = json.loads((files.out / "sweep.json").read_text())["rows"]
    options = {"data": str(files.data), "family": "meanfield", "steps": 30, "learning_rate": 0.1, "variates": "none"}
    settings = FitSettings(model=f"{files.models}:line", **options)
    (seed,) = jax.random.split(jax.random.key(0), 1)
    monkeypatch.setattr(jax.random, "key", lambda number: seed)
    plan = settings.plan(checkpoint=quell.Checkpoint(files.out / "fit.quell"))
    (single,) = run_plan(plan, progress_bar(False, plan.options.steps))
    elbo = float(quell.exact_elbo(single.problem, single.params))
    np.testing.assert_allclose(row["elbos"], [elbo], **tolerances.RUNS)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rates": ""}, "`learning_rates` must be a list of at least one, got []"),
        ({"rates": "0.1,-1"}, "`learning_rates` must be positive and finite, got -1.0"),
        ({"rates": "0.1;0.2"}, "`--rates` must be positive numbers separated by commas, got '0.1;0.2'"),
        ({"subsets": ""}, "`subsets` must be a list of at least one, got []"),
        ({"subsets": "none,S9"}, "got 'S9'"),
        ({"subsets": "auto"}, "got 'auto'"),
        ({"seeds": 0}, "`seeds` must be at least 1, got 0"),
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"family": "gauss"}, "got 'gauss'"),
        ({"data": "missing.csv"}, "missing.csv"),
        ({"model": "nobody"}, "got 'nobody'"),
        ({"model": "broken"}, "one value per datum, got"),
        ({"batch-size": 9}, "batch_size"),
    ],
)
def test_what_is_refused_leaves_no_folder(files, options, words):
    result = _sweep(files, **options)
    assert result.exit_code == 2, result.output
    assert words in _printed(result)
    assert not files.out.exists()


def test_other_settings_in_the_folder_are_refused(files):
    assert _sweep(files).exit_code == 0
    result = _sweep(files, steps=30)
    assert result.exit_code == 2
    assert "holds a sweep with other settings: it differs in steps (20 there, 30 here)" in _printed(result)


def test_ctrl_c_says_how_to_go_on(files, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(command.SweepPlan, "run", interrupted)
    result = _sweep(files)
    assert result.exit_code == 130
    assert "run the same command again to resume" in _printed(result)


def test_a_full_disk_says_what_to_do(files, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command.SweepPlan, "run", full)
    result = _sweep(files)
    assert result.exit_code == 1
    assert "No space left on device" in _printed(result)


def test_a_sweep_in_which_all_diverge_is_a_failure(files):
    result = _sweep(files, rates="1e300")
    assert result.exit_code == 1
    assert "try smaller `--rates`" in _printed(result)
    assert "To fit with the best" not in result.output
    assert (files.out / "sweep.png").exists()


def test_only_the_first_process_writes_the_picture(files, monkeypatch):
    joined = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: joined.append(args))
    assert _sweep(files, "--coordinator", "auto").exit_code == 0
    assert joined == [(None, None, None)]
    (files.out / "sweep.png").unlink()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    row = quell.SweepRow("none", 0.1, (-1.0,), 0, 0.0, 1.0)
    monkeypatch.setattr(command.SweepPlan, "run", lambda *args: quell.SweepResult((row,), 20))
    result = _sweep(files)
    assert (result.exit_code, result.stdout) == (0, "")
    assert not (files.out / "sweep.png").exists()


def test_no_cluster_is_an_error_in_words(files, monkeypatch):
    def missing(*args, **options):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr(jax.distributed, "initialize", missing)
    result = _sweep(files, "--coordinator", "auto")
    assert result.exit_code == 2
    assert "got auto (coordinator_address should be defined.)" in _printed(result)
