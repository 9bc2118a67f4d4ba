# SPDX-License-Identifier: Apache-2.0
"""PyMC models in: against PyMC's own densities and NumPyro's twins, and back under PyMC's names."""

import importlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
import pytest

import quell
from pymc_models import MODELS, REAL, X, built
from quell.adapters import pymc as adapter

QUICK = ("linear", "two_outcomes")
LONG = ("volatility",)
MARKS = {
    **dict.fromkeys(MODELS, pytest.mark.slow),
    **dict.fromkeys(QUICK, ()),
    **dict.fromkeys(LONG, pytest.mark.release),
}
CASES = [pytest.param(name, marks=MARKS[name]) for name in MODELS]


@pytest.fixture(scope="module")
def regression():
    with pm.Model(coords={"row": np.arange(40), "feature": ["one", "two"]}) as model:
        x = pm.Data("x", X, dims=("row", "feature"))
        a, b, s = pm.Normal("a", 0, 5), pm.Normal("b", 0, 2, dims="feature"), pm.HalfNormal("s", 1)
        mean = pm.Deterministic("mean", a + x @ b, dims="row")
        pm.Normal("y", mean, s, observed=REAL, dims="row")
    return model


@pytest.fixture(scope="module")
def fitted(regression):
    return quell.fit(regression, key=jax.random.key(0))


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_fitted_as_its_twin_is(name):
    """The means of draws of 20,000 of each; the coordinates of a simplex are others."""
    ours, theirs = quell.from_pymc(built(name)), quell.from_numpyro(MODELS[name][1])
    assert ours.dim == theirs.dim
    results = [quell.fit(one, quell.FullRank(one.dim), key=jax.random.key(0), khat=False) for one in (ours, theirs)]
    assert all(result.status is quell.Status.CONVERGED for result in results)
    np.testing.assert_allclose(*(result.final_elbo.value for result in results), atol=0.02)
    drawn, expected = (result.sample(jax.random.key(1), 20_000) for result in results)
    for site, values in expected.items():
        mean, std = values.mean(0), values.std(0)
        np.testing.assert_allclose((drawn[site].mean(0) - mean) / std, 0.0, atol=0.05)
        np.testing.assert_allclose(drawn[site].std(0), std, rtol=0.05)


def test_the_log_density_is_that_of_pymc(regression):
    """At points that were not looked at when the model was read; data, prior and Jacobian apart."""
    model, rng = quell.from_pymc(regression), np.random.default_rng(5)
    whole, observed = regression.compile_logp(), regression.compile_logp(vars=regression.observed_RVs)
    for _ in range(3):
        z = jnp.asarray(rng.normal(size=model.dim))
        point = {name: np.asarray(value) for name, value in model.unravel(z).items()}
        np.testing.assert_allclose(model.log_joint(z), whole(point), rtol=1e-10)
        np.testing.assert_allclose(model.log_likelihood(z, model.data).sum(), observed(point), rtol=1e-10)


def test_rows_are_those_of_all_observed_variables():
    model = quell.from_pymc(built("two_outcomes"))
    rows = jnp.array([3, 50, 79])
    z = jnp.array([0.3, -0.2])
    assert model.num_data == 80
    np.testing.assert_allclose(model.log_likelihood(z, rows), model.log_likelihood(z, model.data)[rows])


def test_data_are_arguments_of_the_program(regression):
    model = quell.from_pymc(regression)
    assert {array.shape for array in model.likelihood.given} == {(40, 2), (40,)}


def test_results_have_names_dims_and_coords_of_pymc(fitted, regression):
    assert fitted.choice.reason.startswith("Full rank, for 4 coordinates. Every addend")
    posterior = fitted.to_arviz(num=200)["posterior"]
    assert posterior["b"].dims == ("chain", "draw", "feature")
    assert posterior["mean"].dims == ("chain", "draw", "row")
    assert posterior["feature"].values.tolist() == ["one", "two"]
    expected = posterior["a"].values[..., None] + posterior["b"].values @ X.T
    np.testing.assert_allclose(posterior["mean"], expected)
    predictive = pm.sample_posterior_predictive(fitted.to_arviz(num=50), model=regression, progressbar=False)
    assert predictive["posterior_predictive"]["y"].shape == (1, 50, 40)


def test_log_likelihoods_are_those_of_pymc_by_variable():
    model = built("two_outcomes")
    groups = quell.fit(model, key=jax.random.key(0), khat=False).to_arviz(num=30)
    ours = groups["log_likelihood"]
    theirs = pm.compute_log_likelihood(groups, model=model, extend_inferencedata=False, progressbar=False)
    assert set(ours.data_vars) == set(theirs.data_vars)
    assert len(ours.data_vars) == 2
    for name in ours.data_vars:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)
        assert ours[name].dims == theirs[name].dims


def test_log_likelihoods_have_no_axes_of_an_event():
    rng = np.random.default_rng(0)
    with pm.Model(coords={"row": range(30), "out": ["a", "b"]}) as model:
        mean = pm.Normal("mean", 0, 2, dims="out")
        pm.MvNormal("y", mean, np.eye(2), observed=rng.normal(size=(30, 2)), dims=("row", "out"))
        pm.Normal("one", mean[0], 1.0, observed=0.3)
    groups = quell.fit(model, key=jax.random.key(0), khat=False).to_arviz(num=30)
    theirs = pm.compute_log_likelihood(groups, model=model, extend_inferencedata=False, progressbar=False)
    for name, dims in {"y": ("chain", "draw", "row"), "one": ("chain", "draw")}.items():
        assert groups["log_likelihood"][name].dims == dims
        np.testing.assert_allclose(groups["log_likelihood"][name], theirs[name], rtol=1e-9)


def test_log_likelihoods_are_stored_by_default_where_all_their_numbers_are_few(fitted, monkeypatch):
    monkeypatch.setattr("quell.adapters.arviz.AFFORDABLE", 30 * 40)
    monkeypatch.setattr("quell.adapters.arviz.AT_ONCE", 7 * 40)  # which leaves a rest
    groups = fitted.to_arviz(num=30)
    assert groups["log_likelihood"]["y"].shape == (1, 30, 40)
    assert np.all(np.isfinite(groups["log_likelihood"]["y"]))
    monkeypatch.setattr("quell.adapters.arviz.AFFORDABLE", 30 * 40 - 1)
    assert "log_likelihood" not in fitted.to_arviz(num=30)


def grouped(**sizes):
    """Groups whose prior depends on an input, as counties on their uranium."""
    rng = np.random.default_rng(1)
    group = np.arange(60) % 5
    with pm.Model(coords=sizes.pop("coords", None)) as model:
        if sizes:
            model.add_coord("group", length=5)
        level = pm.Data("level", np.arange(5.0), dims="group")
        g = pm.Normal("g", 2 * level, 5, dims="group")
        pm.Normal("y", g[group], 0.3, observed=2 * group + 0.3 * rng.normal(size=60))
    return model


@pytest.mark.parametrize("model", [grouped(coords={"group": list("abcde")}), grouped(length=5)])
def test_latents_whose_prior_depends_on_data_are_not_drawn_again(model):
    """PyMC would draw those from the prior whose inputs it does not find with the draws, or finds changed."""
    result = quell.fit(model, key=jax.random.key(0), khat=False)
    groups = result.to_arviz(num=300)
    np.testing.assert_array_equal(groups["constant_data"]["level"], np.arange(5.0))
    assert groups["observed_data"]["y"].shape == (60,)
    theirs = pm.sample_posterior_predictive(groups, model=model, progressbar=False)["posterior_predictive"]["y"].values[
        0
    ]
    for found in (theirs, result.predict(jax.random.key(0), num=300)["y"]):
        np.testing.assert_allclose(found.std(0), 0.3, atol=0.1)


def test_predictions_follow_new_data_and_draws_keep_their_labels():
    with pm.Model(coords={"row": np.arange(40)}) as model:
        x = pm.Data("x", X[:, 0], dims="row")
        mean = pm.Deterministic("mean", pm.Normal("b", 0, 2) * x, dims="row")
        pm.Normal("y", mean, 1, observed=REAL, shape=mean.shape)
    result = quell.fit(model, key=jax.random.key(0), khat=False)
    before = result.to_arviz(num=50)["posterior"]
    with model:
        pm.set_data({"x": np.full(10, 3.0)}, coords={"row": np.arange(100, 110)})
    after = result.to_arviz(num=50)["posterior"]
    np.testing.assert_array_equal(after["row"], before["row"])
    found = result.predict(jax.random.key(1), num=400)["y"]
    assert found.shape == (400, 10)
    np.testing.assert_allclose(found.mean(), 3 * result.sample(jax.random.key(2), 400)["b"].mean(), atol=0.2)


def test_shapes_that_data_decide_on_are_read():
    with pm.Model() as model:
        kind = pm.Data("kind", (np.arange(40) % 2).astype(int))
        mean = pm.Normal("mean") * X[:, 0]
        pm.Normal("y", mean[pm.math.eq(kind, 1)], 1, observed=REAL[1::2])
    read = quell.from_pymc(model)
    assert read.num_data == 20


def test_densities_that_must_be_computed_with_care_are_accepted():
    """Far from the start a logistic regression on ages has probabilities that round to one."""
    ages = np.linspace(18, 80, 40)
    with pm.Model() as model:
        pm.Bernoulli("y", logit_p=pm.Normal("a") + pm.Normal("b") * ages, observed=np.arange(40) % 2)
    assert quell.from_pymc(model).dim == 2


@pytest.mark.slow
def test_the_first_model_of_a_process_is_in_double_precision():
    code = (
        "import numpy as np, pymc as pm, quell\n"
        "with pm.Model() as model: pm.Normal('y', pm.Normal('a'), 1, observed=np.ones(3))\n"
        "print(quell.from_pymc(model).flat_latent.dtype)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "float64"


def test_predictions_are_drawn_in_batches(fitted):
    found = fitted.predict(jax.random.key(1), num=600, batch=250)["y"]
    assert found.shape == (600, 40)
    expected = fitted.sample(jax.random.key(2), 2_000)
    np.testing.assert_allclose(found.mean(0), expected["mean"].mean(0), atol=0.2)
    assert abs(found.std(0).mean() - expected["s"].mean()) < 0.1
    with pytest.raises(TypeError, match="takes no data"):
        fitted.predict(jax.random.key(1), X)


def test_a_model_is_read_again_after_predictions():
    """Ours leave it as it is; those of PyMC list its observed variables twice."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=REAL)
    result = quell.fit(model, key=jax.random.key(0), khat=False)
    result.predict(jax.random.key(1), num=10)
    assert len(model.observed_RVs) == 1
    pm.sample_posterior_predictive(result.to_arviz(num=50), model=model, progressbar=False)
    again = quell.from_pymc(model)
    assert again.num_data == 40
    np.testing.assert_allclose(again.log_joint(jnp.ones(1)), result.problem.model.log_joint(jnp.ones(1)))


@pytest.mark.slow
def test_nuts_goes_on_from_a_fit(fitted):
    draws = fitted.nuts(jax.random.key(0), num_samples=300).get_samples()
    np.testing.assert_allclose(draws["b"].mean(0), fitted.sample(jax.random.key(1), 2_000)["b"].mean(0), atol=0.1)


def test_models_that_cannot_be_fitted_are_refused_in_words():
    with pm.Model() as discrete:
        pm.Normal("y", pm.Bernoulli("kind", 0.5), 1, observed=REAL)
    with pm.Model() as batches:
        pm.Normal("y", pm.Normal("a"), 1, observed=pm.Minibatch(REAL, batch_size=5), total_size=40)
    with pm.Model() as prior:
        pm.Normal("a")
    with pm.Model() as known:
        pm.Normal("y", 0, 1, observed=REAL)
    refused = {
        "'kind' is discrete": discrete,
        "pm.Minibatch": batches,
        "observed variables": prior,
        "with latents": known,
    }
    for text, model in refused.items():
        with pytest.raises(ValueError, match=text):
            quell.from_pymc(model)
    with pytest.raises(TypeError, match="got 3"):
        quell.from_pymc(3)


def test_a_density_that_is_not_that_of_pymc_is_refused(monkeypatch):
    own = adapter.PyMCModel.log_joint
    monkeypatch.setattr(adapter.PyMCModel, "log_joint", lambda self, z: own(self, z) + jnp.sum(z) / 100)
    with pytest.raises(ValueError, match="and PyMC's own"):
        quell.from_pymc(built("linear"))


def test_without_pymc_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "quell.adapters.pymc")
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quell\[pymc\]'"):
        importlib.import_module("quell").from_pymc  # noqa: B018
