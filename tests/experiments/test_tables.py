# SPDX-License-Identifier: Apache-2.0
"""The tables of README and documentation are those of the committed results, and one page has all of them."""

import json

import pytest
from typer.testing import CliRunner

from experiments.bench import proof as proofs
from experiments.bench.commands import app
from experiments.bench.tables import FILES, ROOT, filled, tables

MADE = tables()


@pytest.mark.parametrize("name", FILES)
def test_tables_are_made_of_the_results(name):
    """`python -m experiments.bench.tables` writes them."""
    text = (ROOT / name).read_text()
    assert "<!-- table" in text
    assert filled(text, MADE) == text


def test_a_changed_number_changes_the_table(tmp_path):
    for name in ("posteriordb.json", "large.json"):
        content = json.loads((proofs.RESULTS / name).read_text())
        for record in content["records"]:
            record["seconds_total"], record["seconds"] = 1.0, [1.0]
        (tmp_path / name).write_text(json.dumps(content))
    other = tables(tmp_path)
    assert other.keys() == MADE.keys()
    for name in ("headline", "posteriordb", "large-cores", "million-gpu"):
        assert other[name] != MADE[name]


def test_one_page_has_all_results(tmp_path):
    found = CliRunner().invoke(app, ["page", "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    text = (tmp_path / "out" / "benchmark.html").read_text()
    for word in ("pathfinder", "mcycle_gp-accel_gp", "bradley-terry", "robust", "NVIDIA"):
        assert word in text
    assert "http" not in text.replace("http://www.w3.org", ""), "it needs nothing else"
    refused = CliRunner().invoke(app, ["page", "--results", str(tmp_path)])
    assert refused.exit_code == 2
    assert "posteriordb.json" in refused.output


def test_everything_is_one_command(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(proofs, "posteriors", lambda *given, **options: calls.append((given, options)))
    monkeypatch.setattr(proofs, "large", lambda **options: calls.append(((), options)))
    found = CliRunner().invoke(app, ["proof", "--posteriordb", str(tmp_path), "--out", str(tmp_path / "out")])
    assert found.exit_code == 0, found.output
    (_, first), (_, second) = calls
    assert {"quell", "nuts", "pymc-advi", "gsm", "nutpie", "dadvi"} <= set(first["methods"].split(","))
    assert {"robust", "bradley-terry", "horseshoe"} <= set(second["models"].split(","))
    assert first["out"] == second["out"] == tmp_path / "out"
