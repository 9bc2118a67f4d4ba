# SPDX-License-Identifier: Apache-2.0
"""Posteriors with known answers, from a small folder of made-up ones."""

import json
import math
import re
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import tolerances
from experiments.bench.commands import app
from experiments.bench.page import POSTERIORDB, write_results
from experiments.bench.posteriordb.__main__ import fit_and_evaluate
from experiments.bench.posteriordb.accuracy import moment_errors, summarise
from experiments.bench.posteriordb.methods import load
from experiments.bench.posteriordb.methods.batch_and_match import match
from experiments.bench.posteriordb.ports import PORTS
from experiments.bench.posteriordb.source import PosteriorFolder, Reference

RIGHT, WRONG = "sblrc-blr", "sblri-blr"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two regressions of known solution; the reference of the second is ten standard deviations off."""
    path = tmp_path_factory.mktemp("posteriors")
    (path / "data").mkdir()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2))
    y = x @ np.array([1.0, -0.5]) + 0.3 * rng.normal(size=200)
    beta, (squares,), *_ = np.linalg.lstsq(x, y, rcond=None)
    sigma = math.sqrt(squares / 198)
    sds = [*(sigma * np.sqrt(np.diagonal(np.linalg.inv(x.T @ x)))), sigma / math.sqrt(2 * 198)]
    references = {}
    for name, shift in ((RIGHT, 0.0), (WRONG, 10.0)):
        np.savez(path / "data" / f"{name}.npz", X=x, y=y)
        means = [beta[0], beta[1] + shift * sds[1], sigma]
        references[name] = {"names": ["beta[1]", "beta[2]", "sigma"], "means": list(means), "sds": list(sds)}
    (path / "reference.json").write_text(json.dumps(references | {"without-data": references[RIGHT]}))
    return path


def run(folder, out, *words):
    return CliRunner().invoke(app, ["posteriordb", "--posteriordb", str(folder), "--out", str(out), *words])


@pytest.mark.slow
def test_each_fit_is_a_line_and_right_ones_are_counted(folder, tmp_path):
    out = tmp_path / "new" / "results"
    first, second = (run(folder, out, "--methods", "quell") for _ in range(2))
    assert first.exit_code == 0, first.output
    records = {record["posterior"]: record for record in json.loads((out / "posteriordb.json").read_text())["records"]}
    assert list(records) == [RIGHT, WRONG]
    assert records[RIGHT]["status"] in {"COMPLETED", "CONVERGED"}
    assert records[RIGHT]["max_mean_error"] < 0.3
    assert records[RIGHT]["max_abs_log_sd_ratio"] < math.log(1.2)
    assert 9 < records[WRONG]["max_mean_error"] < 11
    assert records[WRONG]["worst_mean"] == "beta[2]"
    assert records[RIGHT]["seconds_total"] > records[RIGHT]["seconds_fit"] > 0
    assert records[RIGHT]["jax_programs"] > 0
    assert "1 of 2" in first.stdout
    assert "2 of 2 results were kept by an earlier run" in second.stderr
    assert second.stdout == first.stdout


def test_bad_options_are_refused(folder, tmp_path):
    for words, needed in {
        "--names sblrc": "'sblrc'",
        "--methods quel": "'quel'",
        "--timeout 0": "`timeout`",
    }.items():
        result = run(folder, tmp_path / "out", *words.split())
        assert result.exit_code == 2
        assert needed in result.output
    result = run(tmp_path, tmp_path / "out")
    assert result.exit_code == 2
    assert "reference.json" in result.output


def test_the_folder_holds_what_has_data_and_a_reference(folder):
    source = PosteriorFolder(folder)
    assert source.names() == [RIGHT, WRONG]
    assert source.data(RIGHT)["X"].shape == (200, 2)
    assert source.digest(RIGHT) != source.digest(WRONG)
    port = PORTS[RIGHT](source.data(RIGHT))
    assert port.names == {"beta": "beta", "sigma": "sigma"}


def test_errors_are_in_standard_deviations_of_the_reference():
    reference = Reference(("a[1]", "a[2]", "b"), np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 0.5]))
    draws = {"site": np.array([[-1.0, -1.0], [1.0, 5.0]]), "b": np.array([1.5, 2.5])}
    found = moment_errors(draws, {"site": "a", "b": "b"}, reference)
    np.testing.assert_allclose(found["max_mean_error"], 0.5, **tolerances.EXACT)
    np.testing.assert_allclose(found["max_abs_log_sd_ratio"], math.log(1.5), **tolerances.EXACT)
    assert (found["worst_mean"], found["worst_sd"]) == ("a[2]", "a[2]")
    assert max(map(abs, found["log_sd_ratios"])) == round(math.log(1.5), 4)
    assert len(found["log_sd_ratios"]) == len(reference.names)
    lost = moment_errors(draws | {"b": np.array([np.nan, 1.0])}, {"site": "a", "b": "b"}, reference)
    assert lost == {"num_not_finite": 1}
    with pytest.raises(ValueError, match=r"'b'.*'c'"):
        moment_errors(draws, {"site": "a", "b": "c"}, reference)


def test_what_failed_counts_as_wrong():
    good = {"seconds_total": 2.0, "max_mean_error": 0.2, "max_abs_log_sd_ratio": 0.1, "status": "CONVERGED"}
    better = {"seconds_total": 4.0, "max_mean_error": 0.05, "max_abs_log_sd_ratio": 0.3, "gradients": 7}
    lost = {"seconds_total": None, "status": "exit code 1"}
    assert summarise([good, better, lost]) == {
        "posteriors": 3,
        "median_seconds": 3.0,
        "largest_seconds": 4.0,
        "median_warm": None,
        "mean_error_below_0.3": 2,
        "mean_error_below_0.1": 1,
        "sds_within_20_percent": 1,
        "converged": 1,
        "median_gradients": 7,
    }


def test_batch_and_match_solves_its_equations_and_is_exact_for_a_gaussian():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    covariance, mean = root @ root.T + np.eye(3), np.array([1.0, -2.0, 3.0])
    now = jnp.zeros(3), jnp.eye(3)
    for step in range(60):
        z = now[0] + rng.normal(size=(8, 3)) @ np.linalg.cholesky(now[1]).T
        scores = -(z - mean) @ np.linalg.inv(covariance)
        rate = 24.0 / (1 + step)
        after = match(now, z, scores, rate)
        share, slope, at = rate / (1 + rate), scores.mean(0), z.mean(0)
        u = rate * np.cov(scores.T, bias=True) + share * np.outer(slope, slope)
        v = now[1] + rate * np.cov(z.T, bias=True) + share * np.outer(now[0] - at, now[0] - at)
        np.testing.assert_allclose(after[1] @ u @ after[1] + after[1], v, rtol=1e-8, atol=1e-8)
        now = after
    np.testing.assert_allclose(now[0], mean, rtol=1e-9)
    np.testing.assert_allclose(now[1], covariance, rtol=1e-9)


def test_all_methods_are_on_one_page_with_those_that_failed(tmp_path):
    def record(posterior, method, **facts):
        return {"posterior": posterior, "method": method, "jax": "0.0", "status": "CONVERGED", **facts}

    good = {"seconds_total": 1.5, "seconds_warm": 0.25, "max_mean_error": 0.05, "max_abs_log_sd_ratio": 0.1}
    records = [
        record("first", "quell", **good),
        record("second", "quell", **good | {"max_mean_error": 0.2, "seconds_total": 2.5}),
        record("first", "nuts", **good | {"max_mean_error": 7.0, "gradients": 12_345}),
        record("second", "slow", seconds_total=None),
    ]
    _, page = write_results(POSTERIORDB, records, tmp_path)
    text = page.read_text()
    assert (tmp_path / "posteriordb.png").read_bytes().startswith(b"\x89PNG")
    assert text.count("data:image/png") == 4  # wide and narrow, light and dark
    row = text[text.index('<tr class="ours">') :].split("</tr>")[0]
    assert re.findall(r"<td>(.*?)</td>", row) == ["2", "2.00", "1.00", "2", "0.25", "2", "1", "2", "2", "–"]
    assert "12,345" in text
    assert re.search(r'<td class="fails">7.00 <small>1.5 s</small>', text)
    assert re.search(r'<td class="open">0.20 <small>2.5 s</small>', text)
    assert '<td class="fails">– <small>– s</small>' in text


def test_a_method_whose_library_is_missing_is_left_out_with_a_line(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gsmvi", None)
    monkeypatch.setitem(sys.modules, "gsmvi.gsm", None)
    result = run(folder, tmp_path / "out", "--methods", "gsm")
    assert result.exit_code == 2
    assert "Left out gsm: gsmvi is not installed; try `pip install gsmvi`." in " ".join(result.output.split())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["quell-mf-response", "batch-and-match", "nuts", "numpyro-svi-best"])
def test_methods_find_a_regression(folder, method):
    source = PosteriorFolder(folder)
    port, reference = PORTS[RIGHT](source.data(RIGHT)), source.reference(RIGHT)
    found = fit_and_evaluate(port, load(method), reference, seed=0)
    assert found.get("error") is None
    assert found["max_mean_error"] < 0.3
    assert found["max_abs_log_sd_ratio"] < math.log(1.2)
    assert found["seconds_total"] > 0
    assert found["seconds_warm"] > 0
