# SPDX-License-Identifier: Apache-2.0
"""The paper's figures, in small versions."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from quell.cli.app import app
from quell.paper import load
from quell.paper.figure1 import run_figure1
from quell.paper.figure4 import artificial_dataset, run_panel
from quell.paper.sweep import FACTORS, run_sweep

PNG = b"\x89PNG\r\n"


def test_figure1_shows_what_each_ensemble_removes():
    figure = run_figure1(load("ionosphere"), num_steps=40, num_evaluations=300)
    variances = {column: figure.variance(column) for column in figure.sq_norm}
    assert np.ptp([variances[column][0] for column in variances]) == 0.0, "before the first step all weights are zero"
    last = {column: values[-10:].mean() for column, values in variances.items()}
    assert 0 < last["S7"] < last["S5"] < last["S4"] < last["none"]
    assert last["S7"] < 0.5 * last["none"]


def test_figure4_has_more_evaluations_below_fewer_and_all_between_best_and_base():
    panel = run_panel(artificial_dataset(), repetitions=10)
    least = [min(panel.sq_norm[size]) for size in (10, 50, 200)]
    assert panel.best_sq_norm <= least[2] <= least[1] <= least[0] < panel.base_sq_norm
    assert panel.sq_norm[10][-1] > min(panel.sq_norm[10]), "a very strong belief in uselessness costs"


def test_sweep_spans_slow_and_diverging_rates():
    sweep = run_sweep([load("ionosphere")], ["c7"], num_runs=2, num_steps=100)[0]
    assert sweep.curves.shape == (len(FACTORS), 2, 51)
    final = sweep.median[:, -1]
    best = int(np.argmax(final))
    assert 0 < best < len(FACTORS) - 1
    np.testing.assert_array_equal(sweep.envelope, sweep.median.max(axis=0))
    assert final[best] < sweep.optimum


@pytest.mark.parametrize("command", ["figure1 --dataset ionosphere", "figure3 --datasets ionosphere", "figure4"])
def test_commands_write_a_picture_and_its_numbers(command, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *command.split(), "--quick", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    name = command.split()[0]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
    assert json.loads((tmp_path / f"{name}.json").read_text())
