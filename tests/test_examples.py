# SPDX-License-Identifier: Apache-2.0
"""The examples, each in small: what they claim, and that they draw."""

import importlib.util
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import quell
from tolerances import STANDARD_ERRORS

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.release
def test_three_bernoullis(tmp_path, capsys):
    example = load("three_bernoullis")
    ensembles = example.make_ensembles()
    rows = example.compare({name: ensembles[name] for name in ("score function", "rebar")}, steps=400)
    assert len(rows) == 4
    variance = {(row.estimator, row.place): row.variance for row in rows}
    for place in example.PLACES:
        assert variance["score function", place] > 4 * variance["rebar", place]
    assert all(row.distance < STANDARD_ERRORS for row in rows)
    example.show(rows)
    assert "| rebar " in capsys.readouterr().out
    example.draw(rows, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_the_distance_from_the_exact_gradient_sees_a_wrong_one(monkeypatch):
    example = load("three_bernoullis")
    exact = example.exact_gradient
    monkeypatch.setattr(example, "exact_gradient", lambda problem, params: exact(problem, params) + 0.02)
    rows = example.compare({"rebar": example.make_ensembles()["rebar"]}, steps=400)
    assert all(row.distance > STANDARD_ERRORS for row in rows)


def test_belief_net(tmp_path, monkeypatch, capsys):
    example = load("belief_net")
    monkeypatch.setattr(example, "RUNS", 1)
    model, family = example.make_model(), quell.Bernoulli(example.SWITCHES)
    joints = example.log_joints(model, family)
    evidence, best = float(jnp.logaddexp.reduce(joints)), example.best_elbo(joints, family)
    fits = example.fit_all(model, family, steps=300)
    assert fits["none"].elbo.mean() < min(fits["default"].elbo.mean(), fits["rebar"].elbo.mean())
    assert all(fit.elbo.max() <= best < evidence for fit in fits.values())
    assert best - fits["rebar"].elbo.mean() < 0.5
    example.show(fits, evidence, best)
    assert f"{evidence:.4f}" in capsys.readouterr().out
    example.draw(fits, evidence, best, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.release
def test_the_implicit_path_has_lower_variance_than_the_score(tmp_path, capsys):
    example = load("gamma_poisson")
    gradients = example.make_gradients(quell.Problem(example.make_model(), example.FAMILY))
    rows = example.compare({name: gradients[name] for name in ("score function", "implicit")}, steps=100)
    score, implicit = (np.array(row.variances) for row in rows)
    assert (score > 10 * implicit).all()
    example.show(rows, example.exact_posterior())
    assert "| implicit " in capsys.readouterr().out
    example.draw(rows, example.exact_posterior(), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_gamma_poisson_finds_the_posterior():
    example = load("gamma_poisson")
    fitted, exact = example.fit_posterior(example.make_model(), steps=500), example.exact_posterior()
    np.testing.assert_allclose(fitted.log_shape, exact.log_shape, atol=0.1)
    np.testing.assert_allclose(fitted.log_rate, exact.log_rate, atol=0.1)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_examples_say_how_to_run_them(name):
    arguments = "localhost:7777 2 0" if name == "many_hosts" else "--out DIR"
    assert f"python examples/{name}.py {arguments}" in load(name).__doc__
