# SPDX-License-Identifier: Apache-2.0
"""The paper's figures, in small versions."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper.commands import app
from experiments.paper.figure4 import PanelExperiment, artificial_dataset
from experiments.paper.sweep import FACTORS, SweepExperiment
from quell.paper import load

pytestmark = pytest.mark.release

PNG = b"\x89PNG\r\n"


def test_figure4_has_more_evaluations_below_fewer_and_all_between_best_and_base():
    panel = PanelExperiment(artificial_dataset(), repetitions=10).run()
    fewest, *_, most = panel.mean
    assert panel.best_sq_norm <= min(most) < min(fewest) < panel.base_sq_norm
    assert most[-1] > min(most), "a very strong prior costs"
    assert fewest[0] > 2 * min(fewest), "two evaluations need some prior"


def test_sweep_spans_slow_and_diverging_rates():
    sweep = SweepExperiment(load("ionosphere"), "c7", num_runs=2, num_steps=100).run()
    assert sweep.curves.shape == (len(FACTORS), 2, 51)
    final = sweep.median[:, -1]
    best = int(np.argmax(final))
    assert 0 < best < len(FACTORS) - 1
    np.testing.assert_array_equal(sweep.envelope, sweep.median.max(axis=0))
    assert final[best] < sweep.optimum


@pytest.mark.parametrize("command", ["figure1 --dataset ionosphere", "figure3 --datasets ionosphere", "figure4"])
def test_commands_write_a_picture_and_its_numbers(command, tmp_path):
    words = [*command.split(), "--quick", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    name = command.split()[0]
    for file in (f"{name}.png", f"pictures/{name}-tall-dark.png"):
        assert (tmp_path / file).read_bytes().startswith(PNG)
    report = json.loads((tmp_path / f"{name}.json").read_text())
    assert {v["outcome"] for v in report["verdicts"]} <= {"holds", "does not hold", "undecided"}
    if name == "figure1":
        last = {column: np.mean(values[-10:]) for column, values in report["variance"].items()}
        assert len({values[0] for values in report["variance"].values()}) == 1, "before the first step no weight is set"
        assert 0 < last["S7"] < last["S5"] < last["S4"] < last["none"]
        assert last["S7"] < 0.5 * last["none"]
    if name == "figure3":  # figure 2 shows the same sweep, so nothing is left to run
        again = CliRunner().invoke(app, ["figure2", *words[1:]])
        assert again.exit_code == 0, again.output
        assert "2 of 2 results were kept by an earlier run" in again.stderr
        assert (tmp_path / "figure2.png").read_bytes().startswith(PNG)
