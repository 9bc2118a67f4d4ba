# SPDX-License-Identifier: Apache-2.0
"""The benchmark's problems, the ELBO of a Gaussian, and our own methods."""

import dataclasses
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
from numpyro.handlers import seed
from numpyro.infer.util import log_density

import quell
import tolerances
from experiments.bench import models, problems
from experiments.bench.adam_runner import Hyper, cosine_decay
from experiments.bench.elbo import elbo_of, elbo_seconds
from experiments.bench.fit_runner import START_SCALE, FitRunner
from experiments.bench.fixed_choices import base_options, fixed_options
from experiments.bench.gaussian import Gaussian, gaussian_of, isotropic, params_of
from experiments.bench.large.models import MODELS as LARGE
from experiments.bench.methods import own_methods
from experiments.bench.reference import best_gaussian
from experiments.common.optimum import find_optimum
from quell.evaluation import exactly
from quell.fit import FitOptions, defaults, method, warm_start
from quell.fit.defaults import WARM_UP_STEPS

pytestmark = pytest.mark.slow

SMALL = ("sonar", "poisson", "hierarchical", "network")


@pytest.fixture(scope="module")
def benches():
    return {name: problems.make_problem(name) for name in SMALL}


# Problems


@pytest.mark.parametrize("name", SMALL)
def test_numpyro_and_quell_have_the_same_log_joint(benches, name):
    bench = benches[name]
    model = bench.problem.model
    z = 0.3 * jax.random.normal(jax.random.key(1), (bench.dim,))
    sites = model.constrain(z)
    sites = sites if isinstance(sites, dict) else {"z": sites}
    theirs, _ = log_density(bench.numpyro_model, bench.rows, {"num_data": bench.num_data}, sites)
    jacobian = sum(math.log(sites[name]) for name in ("spread", "noise") if name in sites)
    np.testing.assert_allclose(bench.log_joint(z, model.data), theirs + jacobian, **tolerances.EXACT)


@pytest.mark.parametrize("name", SMALL)
def test_a_minibatch_of_rows_is_scaled_by_numpyro_as_by_us(benches, name):
    bench = benches[name]
    model = bench.problem.model
    z = 0.3 * jax.random.normal(jax.random.key(1), (bench.dim,))
    sites = model.constrain(z)
    sites = sites if isinstance(sites, dict) else {"z": sites}
    index = jnp.array([3, 17, 60])
    rows = tuple(array[index] for array in bench.rows)
    theirs, _ = log_density(seed(bench.numpyro_model, 0), rows, {"num_data": bench.num_data}, sites)
    jacobian = sum(math.log(sites[name]) for name in ("spread", "noise") if name in sites)
    ours = bench.log_joint(z, jax.tree.map(lambda array: array[index], model.data))
    np.testing.assert_allclose(ours, theirs + jacobian, **tolerances.EXACT)


def test_problems_have_the_sizes_that_they_promise(benches):
    sizes = {name: (bench.num_data, bench.dim, bench.full_rank) for name, bench in benches.items()}
    assert sizes["hierarchical"] == (919, 89, True)
    assert sizes["network"] == (300, 4 * models.HIDDEN + 2, True)
    assert sizes["poisson"] == (2000, 20, True)
    assert set(problems.DEFAULT_NAMES) == set(problems.NAMES) - {"d500"}


def test_an_unknown_problem_is_refused():
    with pytest.raises(ValueError, match=r"problem.*got 'sonnar'.*'sonar'"):
        problems.make_problem("sonnar")


# Gaussians and their ELBO


@pytest.mark.parametrize("full_rank", [False, True])
def test_params_and_gaussians_are_inverse(full_rank):
    family = quell.FullRank(3) if full_rank else quell.MeanField(3)
    scale = jnp.array([[0.5, 0, 0], [0.2, -0.7, 0], [-0.1, 0.4, 0.9]]) if full_rank else jnp.array([0.5, -0.7, 0.9])
    params = params_of(Gaussian(jnp.arange(3.0), scale))
    covariance = scale @ scale.T if full_rank else jnp.diag(scale**2)
    np.testing.assert_allclose(family.covariance_product(params, jnp.eye(3)), covariance, **tolerances.EXACT)
    again = params_of(gaussian_of(params))
    np.testing.assert_allclose(again.scale, params.scale, **tolerances.EXACT)


@pytest.mark.parametrize("full_rank", [False, True])
def test_the_optimum_is_where_the_exact_elbo_has_no_slope(full_rank):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 3))
    counts = rng.poisson(np.exp(features @ np.array([0.5, -0.3, 0.2])))
    model = quell.poisson_regression(features, counts)
    family = quell.FullRank(3) if full_rank else quell.MeanField(3)
    problem = quell.Problem(model, family)
    found = find_optimum(model.log_density, features, counts.astype(float), full_rank=full_rank)

    @eqx.filter_jit
    def loss(flat):
        return -quell.exact_elbo(problem, unravel(flat))

    flat, unravel = jax.flatten_util.ravel_pytree(family.init())
    search = scipy.optimize.minimize(jax.value_and_grad(loss), flat, jac=True, method="BFGS", options={"gtol": 1e-7})
    np.testing.assert_allclose(found.elbo, -search.fun, **tolerances.PUBLISHED)
    assert found.elbo >= -search.fun - 1e-6


def test_the_paper_problem_has_the_papers_optimum(benches):
    best = best_gaussian(benches["sonar"])
    np.testing.assert_allclose(elbo_of(benches["sonar"], best), -110.038, **tolerances.PUBLISHED)


def test_the_elbo_has_common_draws_and_is_minus_infinity_where_not_finite(benches):
    bench = benches["network"]
    here = isotropic(bench.start, 0.05, full_rank=True)
    assert elbo_of(bench, here) == elbo_of(bench, here)
    assert elbo_of(bench, here) > elbo_of(bench, isotropic(bench.start, 1.0, full_rank=True))
    assert elbo_of(bench, Gaussian(here.mean.at[0].set(jnp.nan), here.scale)) == -math.inf
    assert 0 < elbo_seconds(bench) < 10


def test_cosine_decay_is_constant_for_an_infinite_length():
    np.testing.assert_allclose(cosine_decay(jnp.array([0, 50, 100, 200]), 100.0), [1.0, 0.5, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(cosine_decay(jnp.array([0, 10**6]), math.inf), [1.0, 1.0], **tolerances.EXACT)


# Our methods


@pytest.mark.parametrize("name", ["sonar", "network"])
def test_our_methods_are_named_and_one_of_them_runs(benches, name):
    bench = benches[name]
    names = [method.name for method in own_methods(bench, quick=True)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("quell ") for name in names)
    assert ("quell S7" in names) == (name == "sonar")
    assert {"quell auto", "quell fixed", "quell base", "quell ensemble", "quell base, more samples"} <= set(names)


@pytest.mark.parametrize(("name", "sets"), [("sonar", 8), ("hierarchical", 8)])
def test_the_fixed_choices_are_all_sets_of_candidates_and_each_comes_once(benches, name, sets):
    problem = benches[name].problem
    found = fixed_options(problem)
    sampled = [one for one in found if one.base is None]
    kinds = {(frozenset(v.name for v in one.variates), one.sampler.num_replicates) for one in sampled}
    assert len(kinds) == len(sampled)
    defaults = {names for names, num in kinds if num == 10}
    assert frozenset(variate.name for variate in quell.default_variates(problem, sampled[0].sampler)) in defaults
    candidates = {variate.name for variate in max((one.variates for one in sampled), key=len)}
    assert len([names for names in defaults if names <= candidates]) == sets
    assert {num for _, num in kinds} == {10, 20, 40}
    assert (frozenset(), 40) in kinds
    assert len(found) - len(sampled) == (1 if name == "sonar" else 0), "the exact gradient"
    assert base_options(problem).variates == ()


def test_a_program_serves_all_settings_and_chunks_do_not_matter(benches):
    bench = benches["sonar"]
    (runner,) = own_methods(bench, ("base",), quick=True)[0].make()
    setting = {"rate": 0.03, "length": 20.0, "scale": 0.1}
    begin = runner.start(jax.random.key(0), bench.start, setting)
    whole = runner.advance(begin, 20)
    parts = runner.advance(runner.advance(begin, 7), 20)
    np.testing.assert_allclose(runner.gaussian(whole).mean, runner.gaussian(parts).mean, **tolerances.EXACT)
    other = runner.start(jax.random.key(1), bench.start, setting | {"rate": 0.1, "length": math.inf})
    runner.advance(other, 5)
    assert runner._advance._cache_size() == 1
    model = bench.problem.model
    optimizer = Hyper(jnp.asarray(0.03), jnp.asarray(20.0)).optimizer()
    options = {"sampler": quell.Sampler(batch_size=100), "optimizer": optimizer, "variates": (), "steps": 20}
    fitted = quell.fit(model, bench.problem.family, key=jax.random.key(0), **options)
    np.testing.assert_allclose(runner.gaussian(whole).mean, fitted.params.loc, **tolerances.RUNS)


@pytest.mark.usefixtures("on_draws")
@pytest.mark.release
def test_our_method_takes_the_steps_of_a_fit(benches):
    """However it is cut into chunks, and where it has ended before."""
    rng = np.random.default_rng(1)
    data = {"x": jnp.asarray(rng.normal(size=(40, 2))), "y": jnp.asarray(rng.normal(size=40))}
    curved = quell.Model(
        lambda z, rows: -jnp.log1p((rows["y"] - jnp.tanh(rows["x"] @ z)) ** 2), quell.NormalPrior(), data, jnp.zeros(2)
    )
    problem, options, key = quell.Problem(curved, quell.FullRank(2)), FitOptions(steps=50), jax.random.key(3)
    bench = dataclasses.replace(benches["sonar"], problem=problem, start=jnp.zeros(2))
    runner = FitRunner(bench, options)
    state = runner.start(key, bench.start, {})
    for until in (1, 3, 10, 50):
        state = runner.advance(state, until)
    params = params_of(isotropic(bench.start, START_SCALE, full_rank=True))
    result = quell.fit(problem.model, problem.family, steps=50, params=params, key=key)
    assert result.choice.base == "common draws"
    assert int(state.loop.step) == result.history.num_steps < 50
    for one, other in zip(state.loop.params, result.params, strict=True):
        np.testing.assert_allclose(one, other, **tolerances.RUNS)


@pytest.mark.release
def test_adam_runs_as_a_fit_does_its_warm_start_and_warm_up_steps_included(benches, monkeypatch):
    monkeypatch.setattr(warm_start, "LEAST_NUMBERS", 10_000)
    monkeypatch.setattr(method, "LARGEST_EXACT", 200)
    monkeypatch.setattr(defaults, "LARGEST_FULL", 200)
    bench, key = benches["poisson"], jax.random.key(4)
    ((ensemble,), (base,)) = (one.make()[:1] for one in own_methods(bench, ("ensemble", "base")))
    assert ensemble.most_steps({"length": 100.0}) == 100 + WARM_UP_STEPS
    assert base.most_steps({"length": 100.0}) == 100
    assert all("warm start on 400 rows" in runner.label for runner in (ensemble, base))
    setting = {"rate": 0.01, "length": math.inf, "scale": 0.1}
    state = ensemble.start(key, bench.start, setting)
    for until in (1, 7, 30):
        state = ensemble.advance(state, until)
    params = params_of(isotropic(bench.start, 0.1, full_rank=True))
    options = {"optimizer": optax.adam(0.01), "params": params, "steps": 30, "key": key}
    fitted = quell.fit(bench.problem.model, bench.problem.family, **options)
    for one, other in zip(state.algorithm.params, fitted.params, strict=True):
        np.testing.assert_allclose(one, other, **tolerances.RUNS)


@pytest.mark.parametrize("name", [name for name in LARGE if name != "horseshoe"])
def test_large_models_are_exact_in_mean_field(name):
    sizes = {
        "bradley-terry": (12, 40),
        "households": (3, 60),
        "crossed": (50, 6, 4),
        "noise-scale": (50,),
        "robust": (50,),
        "occupancy": (5, 4),
        "polls": (3, 6, 2, 20),
    }
    large = LARGE[name](*sizes[name])
    model = quell.from_numpyro(large.model, **large.data)
    assert exactly(quell.Problem(model, quell.MeanField(model.dim))).expectation is not None
