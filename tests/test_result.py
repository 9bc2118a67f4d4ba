# SPDX-License-Identifier: Apache-2.0
"""What a result tells: summary, ELBO, k-hat, and the groups for ArviZ."""

import math
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
import tolerances
from quell.adapters import arviz as inference_data
from quell.diagnostics import densities, summarise
from quell.diagnostics.summary import COLUMNS

RNG = np.random.default_rng(3)
FEATURES = np.column_stack([RNG.uniform(-1, 1, 12), np.ones(12)])
TARGETS = FEATURES @ [1.5, -0.5] + 0.5 * RNG.normal(size=12)
LOGISTIC = quell.logistic_regression(FEATURES, TARGETS > 0)
PARAMS = quell.LocationScale(jnp.array([0.3, -0.2]), jnp.array([-0.3, -0.2]))
ADAM = optax.adam(0.05)


def _log_likelihood(latent, batch):
    predictor = batch["x"] @ jnp.concatenate([latent["slope"], latent["a/b"][None]])
    return jax.nn.log_sigmoid(batch["sign"] * predictor)


DATA = {"x": FEATURES, "sign": np.where(TARGETS > 0, 1.0, -1.0)}
FUNCTION = quell.Model(_log_likelihood, quell.NormalPrior(), DATA, {"slope": jnp.zeros(1), "a/b": jnp.zeros(())})


class _Positive(quell.Model):
    """A latent that its user reads as positive, with something computed from it."""

    def constrain(self, z):
        positive = jnp.exp(self.unravel(z)["slope"])
        return {"slope": positive, "deep": {"square": positive[0] ** 2}, "many": jnp.outer(positive, jnp.arange(20.0))}


POSITIVE = _Positive(_log_likelihood, quell.NormalPrior(), DATA, {"slope": jnp.zeros(1), "a/b": jnp.zeros(())})


def _result(model, family, params, *, num_steps=0, skipped=0, variates=()):
    """A result without a fit."""
    problem = quell.Problem(model, family)
    gradient = quell.Gradient(problem, variates, base=quell.default_base(problem))
    steps = np.arange(1.0, num_steps + 1)
    weights = np.zeros((num_steps, len(variates)))
    flags = np.arange(num_steps) >= num_steps - skipped
    history = quell.History(np.where(flags, np.nan, -steps), steps, steps, weights, weights > 0, flags)
    return quell.FitResult(
        params, gradient, gradient.init(params), history, quell.Status.COMPLETED, quell.Seconds(0.25, 1.0, 0.25)
    )


@pytest.fixture(scope="module")
def linear():
    return _result(LOGISTIC, quell.MeanField(2), PARAMS, num_steps=4)


@pytest.fixture(scope="module")
def function():
    """The same distribution and the same density, but nothing is known about the model."""
    params = quell.LocationScale(PARAMS.loc[::-1], PARAMS.scale[::-1])  # `a/b` comes first
    return _result(FUNCTION, quell.MeanField(2), params, num_steps=4)


@pytest.fixture(scope="module")
def positive():
    return _result(POSITIVE, quell.MeanField(2), PARAMS)


# The ELBO


def test_the_elbo_is_exact_where_it_can_be(linear, key):
    found = linear.elbo(key)
    assert found.is_exact
    assert found.standard_error == 0
    np.testing.assert_allclose(found.value, quell.exact_elbo(linear.problem, linear.params), **tolerances.EXACT)


def test_what_describes_a_fit_needs_no_key_and_is_the_same_each_time(positive):
    assert repr(positive.summary()) == repr(positive.summary()) != repr(positive.summary(jax.random.key(1)))
    assert positive.khat() == positive.khat()
    assert positive.elbo() == positive.elbo()


@pytest.mark.release
def test_the_exact_elbo_of_a_million_rows_keeps_its_digits_in_single_precision(key):
    num = 2**20
    features = np.random.default_rng(0).normal(size=(num, 1)).astype(np.float32)
    labels = np.arange(num) % 2

    def elbo():
        params = quell.LocationScale(jnp.asarray([0.3]), jnp.asarray([-0.2]))
        return _result(quell.logistic_regression(features, labels), quell.MeanField(1), params).elbo(key).value

    exact = elbo()
    with jax.enable_x64(False):
        found = elbo()
    assert abs(exact) > 7e5
    assert abs(found - exact) < 0.03, "half of a unit in the last place of single precision"


def test_an_estimate_of_the_elbo_is_right_within_its_error(linear, function, key):
    exact, found = linear.elbo(key).value, function.elbo(key, 4000)
    assert 0 < found.standard_error < 0.1
    assert abs(found.value - exact) < tolerances.STANDARD_ERRORS * found.standard_error
    assert abs(found.value + 0.5 - exact) > tolerances.STANDARD_ERRORS * found.standard_error, "half a nat is seen"


def test_densities_do_not_depend_on_the_chunks(function, monkeypatch, key):
    monkeypatch.setattr(densities, "DATA_CHUNK", 5)
    monkeypatch.setattr(densities, "_CELLS", 20)
    found = densities.score_sample(key, function.problem, function.params, 27)
    latents = function.sample_flat(key, 27, corrected=False)
    model, family = function.problem.model, function.problem.family
    log_p = [jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z) for z in latents]
    log_q = [family.log_prob(function.params, z) for z in latents]
    np.testing.assert_array_equal(found.latents, latents)
    np.testing.assert_allclose(found.log_p, log_p, **tolerances.EXACT)
    np.testing.assert_allclose(found.log_q, log_q, **tolerances.EXACT)
    np.testing.assert_allclose(
        densities.log_likelihoods(model, latents),
        [model.log_likelihood(z, model.data) for z in latents],
        **tolerances.EXACT,
    )


# How far it can be trusted


def _conjugate(scale=1.0):
    """A Gaussian posterior, and a Gaussian that is it, or narrower."""
    model = quell.gaussian_regression(FEATURES, TARGETS, noise=0.5)
    covariance = np.linalg.inv(FEATURES.T @ FEATURES / 0.25 + np.eye(2))
    mean = covariance @ FEATURES.T @ TARGETS / 0.25
    factor = jnp.asarray(scale * np.linalg.cholesky(covariance))
    return _result(model, quell.FullRank(2, log_scale=False), quell.LocationScale(jnp.asarray(mean), factor))


def test_khat_of_the_posterior_itself_and_of_a_narrow_one(key):
    itself, narrow = _conjugate().khat(key), _conjugate(0.4).khat(key)
    assert itself.value == -math.inf
    assert itself.is_good
    assert narrow.value > narrow.threshold == 0.7
    assert not narrow.is_good
    assert narrow.num == 10_000
    assert _conjugate(0.4).khat(key, 1000).threshold == pytest.approx(2 / 3)
    assert "no Gaussian does better" in narrow.advice
    assert repr(narrow).startswith(f"Khat({narrow.value:.2f}, good up to 0.70): The ")


def test_khat_of_a_discrete_family(key):
    model = quell.Model(lambda z, x: x * z[0] - z[1] * z[2], lambda z: -jnp.sum(z), jnp.arange(3.0), 3)
    found = _result(model, quell.Bernoulli(3), quell.Bernoulli(3).init()).khat(key)
    assert not math.isnan(found.value)
    assert found.is_good, "eight values cannot have a heavy tail"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("method", "least"), [("khat", 25), ("to_arviz", 25), ("summary", 1), ("elbo", 2)])
def test_too_few_samples_are_refused(function, key, method, least):
    with pytest.raises(ValueError, match=rf"`num` must be at least {least}, got 0"):
        getattr(function, method)(key, 0)
    with pytest.raises(TypeError, match=r"`key` must be one typed random key, got 0"):
        getattr(function, method)(0, 100)


# The table


def test_the_summary_is_that_of_the_samples_on_their_users_scale(positive, key):
    found, sample = positive.summary(key, 500).as_dict(), positive.sample(key, 500)
    assert list(found)[:2] == ["deep.square", "many[0,0]"]
    assert list(found)[-1] == "slope[0]"
    row = found["slope[0]"]
    draws = np.asarray(sample["slope"][:, 0])
    expected = [draws.mean(), draws.std(ddof=1), *np.quantile(draws, [0.05, 0.5, 0.95])]
    np.testing.assert_allclose([row[column] for column in COLUMNS], expected, **tolerances.EXACT)
    np.testing.assert_allclose(found["deep.square"]["50%"], row["50%"] ** 2, **tolerances.PRINTED)


def test_a_long_vector_is_cut_short_in_print(positive, key):
    summary = positive.summary(key, 50)
    lines = repr(summary).splitlines()
    assert [line.split()[0] for line in lines[1:]] == [
        *("deep.square", "many[0,0]", "many[0,1]", "many[0,2]", "...", "many[0,19]", "slope[0]")
    ]
    assert "... (16 more)" in repr(summary)
    assert len(list(summary.rows())) == len(summary.as_dict()) == 22
    np.testing.assert_allclose(float(lines[-1].split()[1]), summary.as_dict()["slope[0]"]["mean"], **tolerances.PRINTED)


def test_a_page_has_room_for_so_many_rows():
    summary = summarise({f"a{k}": np.zeros((3, 20)) for k in range(100)})
    assert len(summary.short_rows(most=10)) == 11
    assert summary.short_rows(most=10)[-1].name == "... and 1,960 more rows"
    assert len(repr(summary).splitlines()) == 62
    assert summarise(np.zeros((1, 2))).names == ("z[0]", "z[1]")
    assert math.isnan(summarise(np.zeros((1, 2))).values[0, 1]), "one sample has no spread"


def test_names_are_text_in_a_notebook():
    html = summarise({"<script>alert(1)</script>": np.zeros((3, 1))})._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;[0]" in html


def test_mean_and_std_are_in_the_models_own_coordinates(positive):
    assert positive.mean["slope"] == PARAMS.loc[1]
    np.testing.assert_allclose(positive.std["slope"], jnp.exp(PARAMS.scale[1:]), **tolerances.EXACT)


def test_skipped_steps_are_told():
    result = _result(LOGISTIC, quell.MeanField(2), PARAMS, num_steps=20, skipped=3, variates=quell.paper.variates("c7"))
    assert "skipped  3 steps, because they were not finite" in repr(result)
    assert "nan times below" not in repr(result)
    assert "skipped" not in repr(_result(LOGISTIC, quell.MeanField(2), PARAMS, num_steps=2))


# ArviZ


@pytest.fixture(scope="module")
def data(function):
    pytest.importorskip("xarray")
    return function.to_arviz(jax.random.key(1), 60, corrected=False)


def test_the_groups_of_arviz(function, data):
    sample = function.sample(jax.random.key(1), 60, corrected=False)
    np.testing.assert_array_equal(data["posterior"]["slope"], np.asarray(sample["slope"])[None])
    np.testing.assert_array_equal(data["posterior"]["a.b"], np.asarray(sample["a/b"])[None])
    assert data["posterior"]["slope"].dims == ("chain", "draw", "slope_dim_0")
    stats = data["sample_stats"]
    scored = densities.score_sample(jax.random.key(1), function.problem, function.params, 60)
    np.testing.assert_array_equal(stats["lp"], scored.log_p[None])
    np.testing.assert_array_equal(stats["log_q"], scored.log_q[None])
    assert data["log_likelihood"]["obs"].shape == (1, 60, 12)
    prior = np.array([function.problem.model.prior.log_prob(z) for z in scored.latents])
    total = data["log_likelihood"]["obs"].sum("datum").values[0] + prior
    np.testing.assert_allclose(total, scored.log_p, **tolerances.EXACT)
    np.testing.assert_array_equal(data["fit"]["elbo"], function.history.elbo)


def test_the_attributes_of_arviz(function, data):
    khat = function.khat(jax.random.key(1), 60)
    attributes = data["posterior"].attrs
    assert attributes["inference_library"] == "quell"
    assert attributes["inference_library_version"] == quell.__version__
    assert attributes["status"] == "completed"
    assert attributes["seconds"] == 1.5
    assert attributes["khat"] == khat.value
    assert attributes["khat_threshold"] == khat.threshold
    assert attributes["corrected"] == 0


def test_arviz_can_work_with_it_and_keep_it(data, tmp_path):
    arviz = inference_data._arviz()
    table = arviz.summary(data, kind="stats")
    assert set(table.index) == {"slope[0]", "a.b"}
    data.to_netcdf(tmp_path / "fit.nc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        again = arviz.from_netcdf(tmp_path / "fit.nc")
    np.testing.assert_array_equal(again["posterior"]["slope"], data["posterior"]["slope"])
    assert again["posterior"].attrs["khat"] == data["posterior"].attrs["khat"]


def test_the_log_likelihood_is_stored_where_it_is_affordable(function, monkeypatch, key):
    monkeypatch.setattr(inference_data, "AFFORDABLE", 100)
    assert "log_likelihood" not in function.to_arviz(key, 25)
    assert "log_likelihood" in function.to_arviz(key, 25, log_likelihood=True)
    assert "log_likelihood" not in function.to_arviz(key, 25, log_likelihood=False)


def test_without_arviz_the_way_to_get_it_is_told(function, monkeypatch, key):
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'quell\[arviz\]'"):
        function.to_arviz(key, 25)


def test_importing_quell_imports_nothing_optional():
    optional = {"arviz", "jinja2", "matplotlib", "numpyro", "PIL", "xarray"}
    program = f"import sys, quell; print(sorted({optional} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
