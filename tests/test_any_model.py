# SPDX-License-Identifier: Apache-2.0
"""`quell.fit` without a family and of NumPyro models, and what a result offers beyond its Gaussian."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import quell
from quell.diagnostics.corrected import pool_size
from quell.diagnostics.densities import score_sample
from quell.families import draw_latents
from quell.fit.family_choice import LARGEST_FULL_RANK, choose_family

RNG = np.random.default_rng(0)
X = np.linspace(1, 3, 30)
Y = 1 + 2 * X + 0.3 * RNG.normal(size=30)
FEATURES = np.column_stack([np.ones(30), X])
GAUSSIAN = quell.gaussian_regression(FEATURES, Y, noise=0.3)
PRECISION = FEATURES.T @ FEATURES / 0.09 + np.eye(2)


def line(x, y=None):
    intercept = numpyro.sample("intercept", dist.Normal(0, 5))
    slope = numpyro.sample("slope", dist.Normal(0, 5))
    noise = numpyro.sample("noise", dist.HalfNormal(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(intercept + slope * x, noise), obs=y)


@pytest.fixture(scope="module")
def fitted():
    return quell.fit(line, X, Y, key=jax.random.key(0))


@pytest.fixture(scope="module")
def mean_field():
    return quell.fit(GAUSSIAN, family=quell.MeanField, key=jax.random.key(0))


# Any model in


def test_a_numpyro_model_is_fitted_with_its_arguments(fitted):
    read = quell.from_numpyro(line, X, Y)
    same = quell.fit(read, quell.FullRank(read.dim), key=jax.random.key(0))
    np.testing.assert_allclose(fitted.final_elbo.value, same.final_elbo.value, rtol=1e-6)
    assert fitted.choice.reason.startswith("Full rank, for 3 coordinates. ")
    assert same.choice.reason in fitted.choice.reason
    assert fitted.seconds.reading > 0


@pytest.mark.parametrize(("more", "kind"), [(0, quell.FullRank), (1, quell.MeanField)])
def test_the_family_goes_by_the_number_of_coordinates(more, kind):
    dim = LARGEST_FULL_RANK + more
    chosen = choose_family(None, dim)
    assert isinstance(chosen.family, kind)
    assert f"{dim:,}" in chosen.reason


def test_a_family_that_was_given_is_taken(key):
    made = [
        quell.fit(GAUSSIAN, quell.MeanField(2), key=key),
        quell.fit(GAUSSIAN, family=quell.MeanField(2), key=key),
        quell.fit(GAUSSIAN, family=quell.MeanField, key=key),
    ]
    for result in made:
        assert result.problem.family == quell.MeanField(2)
        assert "Full rank" not in result.choice.reason
    assert len(quell.fit_many(GAUSSIAN, num_fits=2, key=key)) == 2


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((line, X, Y, quell.FullRank(3)), {}, "try `family=quell.FullRank`"),
        ((line, X, Y, quell.MeanField), {}, "try `family=quell.MeanField`"),
        ((line, X), {"y": Y}, r"`y` is no option of a fit.*from_numpyro\(model, \.\.\., y="),
        ((3,), {}, "must be a model of quell|Expected type"),
        ((GAUSSIAN, quell.FullRank(2), quell.FullRank(2)), {}, "got 2 arguments"),
        ((GAUSSIAN, quell.FullRank(2)), {"family": quell.MeanField}, "got 1 arguments"),
        ((GAUSSIAN,), {"family": int}, "must be a family or make one"),
        ((GAUSSIAN,), {"family": "full rank"}, "must be a family or make one|Expected type"),
    ],
)
def test_bad_input_is_refused(args, options, text, key):
    with pytest.raises(TypeError, match=text):
        quell.fit(*args, key=key, **options)


# Linear response


def test_the_linear_response_of_a_normal_posterior_is_its_covariance(mean_field):
    """Mean field has the inverses of the diagonal of the precision, linear response the inverse of the precision."""
    exact = np.linalg.inv(PRECISION)
    np.testing.assert_allclose(mean_field.std**2, 1 / np.diagonal(PRECISION), rtol=1e-4)
    response = mean_field.linear_response()
    np.testing.assert_allclose(response.covariance, exact, rtol=1e-3)
    np.testing.assert_allclose(response.std, np.sqrt(np.diagonal(exact)), rtol=1e-3)
    draws = response.sample(jax.random.key(1), 50_000)
    np.testing.assert_allclose(np.cov(draws.T), exact, rtol=0.05)
    assert response.khat().is_good
    assert not mean_field.final_khat.is_good


def test_quantities_respond_as_their_linear_function_does(mean_field):
    """By conjugate gradients, without the Hessian: a contrast and a prediction."""
    rows = jnp.array([[1.0, -1.0], [1.0, 2.5]])
    found = mean_field.linear_response().of(lambda z: {"both": rows @ z})
    np.testing.assert_allclose(found.mean["both"], rows @ mean_field.mean, atol=0.02)
    expected = jnp.sqrt(jnp.diagonal(rows @ np.linalg.inv(PRECISION) @ rows.T))
    np.testing.assert_allclose(found.std["both"], expected, rtol=1e-2)


def test_the_linear_response_is_there_for_models_that_are_sampled(monkeypatch):
    """On draws as with exact expectations."""
    exact = quell.fit(line, X, Y, family=quell.MeanField, key=jax.random.key(0))
    monkeypatch.setattr(importlib.import_module("quell.fit.method"), "exactly", lambda problem, level: problem)
    sampled = quell.fit(line, X, Y, family=quell.MeanField, key=jax.random.key(0))
    assert sampled.choice.base == "common draws"
    ours, theirs = (result.linear_response().covariance for result in (sampled, exact))
    np.testing.assert_allclose(np.diagonal(ours), np.diagonal(theirs), rtol=0.05)


def test_the_summary_and_arviz_of_a_linear_response(mean_field):
    response = mean_field.linear_response()
    stds = [row.values[1] for row in response.summary(num=20_000).rows()]
    np.testing.assert_allclose(stds, response.std, rtol=0.05)
    posterior = response.to_arviz(num=2_000)["posterior"]
    np.testing.assert_allclose(posterior["z"].std(("chain", "draw")), response.std, rtol=0.1)


def test_a_linear_response_away_from_an_optimum_is_refused():
    model = quell.Model(lambda z, x: jnp.cos(z[0]) + 0.0 * x, quell.NormalPrior(0.0, 10.0), jnp.zeros(3), 1)
    top = quell.fit(model, quell.MeanField(1), key=jax.random.key(0))
    params = top.params._replace(loc=jnp.full_like(top.params.loc, np.pi), scale=jnp.log(0.1) + 0 * top.params.scale)
    lost = dataclasses.replace(top, params=params)
    with pytest.raises(ValueError, match="needs a fit at an optimum"):
        lost.linear_response().covariance  # noqa: B018
    with pytest.raises(ValueError, match="needs a fit at an optimum"):
        lost.linear_response().of(lambda z: z)


def test_a_linear_response_of_a_fit_that_has_not_converged_warns():
    data = quell.paper.load("sonar")
    model = quell.logistic_regression(data.features, data.labels)
    result = quell.fit(model, quell.MeanField(model.dim), steps=1, khat=False, key=jax.random.key(0))
    with pytest.warns(UserWarning, match="has not converged"):
        result.linear_response().covariance  # noqa: B018
    with pytest.warns(UserWarning, match="has not converged"):
        result.linear_response().of(lambda z: z[0])


@pytest.mark.parametrize("family", [quell.FullRank(2), quell.LowRank(2, rank=2)])
def test_families_with_correlations_have_quantities_only(family, key):
    response = quell.fit(GAUSSIAN, family, key=key).linear_response()
    expected = np.sqrt(np.diagonal(np.linalg.inv(PRECISION)))
    np.testing.assert_allclose(response.of(lambda z: z).std, expected, rtol=1e-2)
    with pytest.raises(ValueError, match=r"is for `quell\.MeanField`"):
        response.covariance  # noqa: B018


def test_events_are_no_quantities(mean_field):
    with pytest.raises(TypeError, match="smooth functions with real values, got bool"):
        mean_field.linear_response().of(lambda z: z > 0)


def test_a_linear_response_that_no_gaussian_follows_warns():
    """A funnel: the mean-field fit is at its optimum, and no covariance makes a Gaussian of the posterior."""
    funnel = quell.from_log_density(
        lambda z: -0.5 * (z[0] / 3) ** 2 - 4 * z[0] - 0.5 * jnp.sum((z[1:] / jnp.exp(z[0])) ** 2), 5
    )
    result = quell.fit(funnel, family=quell.MeanField, key=jax.random.key(0))
    with pytest.warns(UserWarning, match=r"weights of the posterior (change them by a factor of up to|leave)"):
        result.linear_response().std  # noqa: B018


def test_quantities_that_jump_are_told_or_refused(mean_field):
    response = mean_field.linear_response()
    with pytest.warns(UserWarning, match="`quantities` jump"):
        response.of(lambda z: 0.1 * z[0] + jnp.where(z[1] > mean_field.mean[1], 1.0, 0.0))
    with pytest.raises(ValueError, match="one that varies and has none"):
        response.of(lambda z: jnp.floor(100 * z))
    for smooth in (jax.nn.softmax, jnp.abs, jnp.max, jax.scipy.stats.norm.cdf, lambda z: jnp.exp(z) ** 2):
        response.of(smooth)
    assert response.of(lambda z: jnp.ones(2)).std.tolist() == [0.0, 0.0], "a constant has no spread"


def test_a_linear_response_of_too_much_is_refused(mean_field, monkeypatch):
    module = importlib.import_module("quell.fit.linear_response")
    monkeypatch.setattr(module, "MOST_DENSE", 3)
    monkeypatch.setattr(module, "MOST_QUANTITIES", 1)
    with pytest.raises(ValueError, match="at most 3 parameters, got 4"):
        mean_field.linear_response().std  # noqa: B018
    with pytest.raises(ValueError, match="at most 1 numbers, got 2"):
        mean_field.linear_response().of(lambda z: z)


def test_a_linear_response_needs_a_gaussian(key):
    model = quell.Model(lambda z, x: -z[0] * x + jnp.log(z[0]), lambda z: -z[0], jnp.ones(3), 1)
    result = quell.fit(model, quell.Gamma(1), steps=10, key=key)
    with pytest.raises(ValueError, match="needs a Gaussian family"):
        result.linear_response()


# Corrected draws


def skewed(skew):
    """A density whose moments quadrature knows, near a normal one."""
    return quell.from_log_density(lambda z: -0.5 * z[0] ** 2 + skew * jnp.tanh(z[0]) * z[0] ** 2, 1)


def test_corrected_draws_have_the_moments_of_the_posterior():
    model = skewed(0.15)
    result = quell.fit(model, key=jax.random.key(0))
    grid = np.linspace(-8, 12, 20_001)
    weights = np.exp([float(model.log_joint(jnp.array([z]))) for z in grid[::50]])
    weights = np.interp(grid, grid[::50], weights)
    weights /= weights.sum()
    mean = grid @ weights
    std = np.sqrt((grid - mean) ** 2 @ weights)
    plain, corrected = (result.sample(jax.random.key(1), 40_000, corrected=each) for each in (False, True))
    np.testing.assert_allclose(corrected.std(), std, rtol=0.02)
    assert abs(corrected.std() - std) < 0.5 * abs(plain.std() - std)
    assert abs(corrected.mean() - mean) < 0.02 * std
    assert result.summary(corrected=True, num=4000).num == 4000


def test_corrected_draws_are_refused_where_k_hat_is_bad(mean_field):
    with pytest.raises(ValueError, match=r"Corrected draws need a k-hat of at most 0\.70, got .*`result\.nuts"):
        mean_field.sample(jax.random.key(0), 100, corrected=True)


def test_corrected_draws_of_one_key_are_the_same():
    result = quell.fit(skewed(0.1), key=jax.random.key(0))
    one, other = (result.sample_flat(jax.random.key(3), 50, corrected=True) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, result.sample_flat(jax.random.key(4), 50, corrected=True))


@pytest.fixture(scope="module")
def correctable():
    """Eight schools, not centred, where draws of the fit are worth half of as many of the posterior."""
    effect, error = jnp.array([28.0, 8, -3, 7, -1, 1, 18, 12]), jnp.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def schools(effect, error):
        mean, scale = numpyro.sample("mean", dist.Normal(0, 5)), numpyro.sample("scale", dist.HalfCauchy(5))
        with numpyro.plate("schools", 8):
            raw = numpyro.sample("raw", dist.Normal(0, 1))
            numpyro.sample("effect", dist.Normal(mean + scale * raw, error), obs=effect)

    return quell.fit(schools, effect, error, key=jax.random.key(0))


def test_draws_are_corrected_unasked_where_that_brings_them_nearer(correctable):
    """The mean of the scale is 3.6 by long runs of NUTS."""
    assert correctable.corrects
    assert "draws are corrected" in repr(correctable)
    key = jax.random.key(1)
    default, corrected, plain = (
        correctable.sample(key, 4_000, **options)["scale"]
        for options in ({}, {"corrected": True}, {"corrected": False})
    )
    np.testing.assert_array_equal(default, corrected)
    assert abs(default.mean() - 3.6) < 0.15 < 0.3 < abs(plain.mean() - 3.6)
    flat = correctable.sample_flat(key, 4_000, corrected=False)
    np.testing.assert_array_equal(flat, draw_latents(key, correctable.problem.family, correctable.params, 4_000))
    default, plain = (correctable.summary(key, 4_000, **options) for options in ({}, {"corrected": False}))
    assert default.as_dict()["scale"]["mean"] > plain.as_dict()["scale"]["mean"] + 0.2
    of_fit = correctable.sample_flat(key, 10, corrected=False)
    compiled = jax.jit(lambda key: correctable.sample_flat(key, 10))(key)
    np.testing.assert_allclose(compiled, of_fit, rtol=1e-9, err_msg="within another program they are those of the fit")
    compiled = jax.jit(lambda params: dataclasses.replace(correctable, params=params).sample_flat(key, 10))
    np.testing.assert_allclose(compiled(correctable.params), of_fit, rtol=1e-9)


def test_an_exact_fit_has_nothing_to_correct():
    result = quell.fit(GAUSSIAN, quell.FullRank(2), key=jax.random.key(0))
    assert result.final_khat.effective > 0.999
    assert not result.corrects


def test_more_draws_are_weighted_where_weights_are_uneven(correctable):
    pairs = ((1, 0.5), (1_000, 0.5), (1_000, 0.1), (1_000, 1e-6))
    sizes = [pool_size(num, dataclasses.replace(correctable.final_khat, effective=share)) for num, share in pairs]
    assert sizes == [1_000, 10_000, 40_000, 400_000]


def test_arviz_has_corrected_draws_without_the_density_that_they_do_not_have(correctable):
    pytest.importorskip("arviz")
    corrected, plain = (correctable.to_arviz(num=500, corrected=each) for each in (None, False))
    assert corrected["posterior"].attrs["corrected"] == 1
    assert set(corrected["sample_stats"]) == {"lp"}
    assert set(plain["sample_stats"]) == {"lp", "log_q"}
    latents = correctable.sample_flat(jax.random.key(0), 500)
    lp = jax.vmap(correctable.problem.model.log_joint)(latents)
    np.testing.assert_allclose(corrected["sample_stats"]["lp"].to_numpy()[0], lp, rtol=1e-9)


def test_where_weights_are_even_or_many_rows_hide_them_draws_are_those_of_the_fit(monkeypatch, correctable):
    close = quell.fit(skewed(0.02), key=jax.random.key(0))
    assert close.final_khat.effective > 0.99
    assert not close.corrects
    bad = dataclasses.replace(correctable.final_khat, value=0.8)
    assert not bad.is_correctable
    many = dataclasses.replace(correctable, lost_draws=0.0)  # nothing is cached on it
    with monkeypatch.context() as patch:
        patch.setattr("quell.diagnostics.densities.MOST_VALUES", 1000)
        assert not many.corrects
        assert "final_khat" not in many.__dict__, "it would take long"
    wide = dataclasses.replace(correctable, lost_draws=0.0)
    monkeypatch.setattr("quell.diagnostics.corrected.MOST_NUMBERS", 99_999)  # 10,000 draws of ten coordinates
    assert not wide.corrects
    assert not dataclasses.replace(correctable, has_khat=False).corrects


def test_a_few_draws_without_a_density_are_left_out_of_corrected_ones(monkeypatch, correctable):
    lost = {"share": 0.005}

    def without_some(*given):
        sample = score_sample(*given)
        num = round(lost["share"] * sample.log_p.size)
        gone = np.where(np.arange(sample.log_p.size) < num, np.nan, sample.log_p)
        return dataclasses.replace(sample, log_p=gone)

    monkeypatch.setattr("quell.diagnostics.corrected.score_sample", without_some)
    key = jax.random.key(1)
    found = correctable.sample_flat(key, 500)
    num = pool_size(500, correctable.final_khat)
    gone = score_sample(key, correctable.problem, correctable.params, num).latents[: round(0.005 * num)]
    assert not np.isin(np.asarray(found)[:, 0], np.asarray(gone)[:, 0]).any()
    lost["share"] = 0.02
    with pytest.raises(ValueError, match="not finite at some draws"):
        correctable.sample_flat(key, 500)


# The posterior itself


@pytest.mark.parametrize("family", [pytest.param(quell.FullRank, marks=pytest.mark.slow), quell.MeanField])
def test_nuts_begins_with_the_fit(family):
    result = quell.fit(line, X, Y, family=family, key=jax.random.key(0))
    mcmc = result.nuts(jax.random.key(1), 500, num_chains=2)
    draws = mcmc.get_samples()
    assert set(draws) == {"intercept", "slope", "noise"}
    assert draws["slope"].shape == (1000,)
    fields = mcmc.get_extra_fields()
    assert float(jnp.mean(fields["num_steps"])) < 8, "a mass matrix that is right"
    assert not fields["diverging"].any()
    np.testing.assert_allclose(draws["slope"].mean(), 2.0, atol=0.2)


def test_a_plain_model_has_nuts_too(mean_field):
    draws = mean_field.nuts(jax.random.key(0), 1000, num_chains=1).get_samples()
    np.testing.assert_allclose(np.cov(draws.T), np.linalg.inv(PRECISION), rtol=0.25)


def test_predictions_are_those_of_the_posterior(fitted):
    new = np.array([5.0, 6.0])
    found = fitted.predict(jax.random.key(1), new, num=3000, batch=1000)
    assert found["y"].shape == (3000, 2)
    draws = fitted.sample(jax.random.key(2), 3000)
    mean = (draws["intercept"] + draws["slope"] * 5.0).mean()
    np.testing.assert_allclose(found["y"][:, 0].mean(), mean, atol=0.05)
    spread = np.sqrt((draws["intercept"] + draws["slope"] * 5.0).var() + (draws["noise"] ** 2).mean())
    np.testing.assert_allclose(found["y"][:, 0].std(), spread, rtol=0.06)


def test_predictions_do_not_depend_on_the_batch(fitted):
    one, other = (fitted.predict(jax.random.key(1), X[:3], num=20, batch=batch)["y"] for batch in (7, 20))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_data_that_are_observed_are_not_predicted(fitted):
    with pytest.raises(ValueError, match="give `None` in place of the data"):
        fitted.predict(jax.random.key(1), X, Y)


@pytest.mark.parametrize("steps", [1, 2000])
def test_nuts_of_a_fit_that_has_no_linear_response_adapts_its_mass_matrix(steps, monkeypatch):
    module = importlib.import_module("quell.fit.linear_response")
    monkeypatch.setattr(module, "MOST_DENSE", 1)
    result = quell.fit(GAUSSIAN, family=quell.MeanField, steps=steps, key=jax.random.key(0))
    draws = result.nuts(jax.random.key(0), 1000, num_warmup=300, num_chains=1).get_samples()
    np.testing.assert_allclose(draws.mean(axis=0), np.linalg.solve(PRECISION, FEATURES.T @ Y / 0.09), atol=0.1)


def test_options_that_come_from_the_fit_are_refused(mean_field):
    with pytest.raises(TypeError, match="`dense_mass` comes from the fit"):
        mean_field.nuts(jax.random.key(0), dense_mass=False)


def test_predictions_of_a_plain_model_are_refused(mean_field):
    with pytest.raises(ValueError, match=r"from_numpyro.*result\.sample"):
        mean_field.predict(jax.random.key(0))
