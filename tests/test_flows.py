# SPDX-License-Identifier: Apache-2.0
"""Flows of flowjax: around a fitted Gaussian, with densities and scores that need no inverse."""

import functools
import sys

import equinox as eqx
import flowjax.flows as flows
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flowjax.bijections import Flip, Invert
from flowjax.distributions import Cauchy, StandardNormal, Transformed

import quell
from quell.adapters import flowjax as adapter
from quell.adapters.masked_affine import MaskedAffine
from quell.evaluation import Evaluation, Problem, Sampler
from quell.families.gaussian import Gaussian

KEY = jax.random.key(0)
WITH_NETWORKS = ("coupling_flow", "masked_autoregressive_flow")


def banana():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x**2 - 1.0, 0.3))
    numpyro.sample("nothing", dist.Normal(0.0, 1.0), obs=0.0)


def gaussian():
    x = numpyro.sample("x", dist.Normal(1.0, 2.0))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=0.3)


def made(kind, dim=3):
    """A flow of flowjax."""
    options = {"coupling_flow": {"nn_width": 8}, "masked_autoregressive_flow": {"nn_width": 8}}.get(kind, {})
    return getattr(flows, kind)(KEY, base_dist=StandardNormal((dim,)), flow_layers=2, invert=False, **options)


def all_close(one, two):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), one, two)


def moved(family):
    """Parameters away from the start, in double precision."""
    params = family.init(dtype=jnp.float64)
    return jax.tree.map(lambda leaf: leaf + 0.1 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape), params)


@pytest.mark.parametrize("kind", WITH_NETWORKS)
def test_flows_with_networks_begin_as_the_gaussian(kind):
    factor = jnp.asarray(np.linalg.cholesky(np.array([[2.0, 0.5, 0.1], [0.5, 1.0, -0.3], [0.1, -0.3, 0.7]])))
    mean = jnp.array([1.0, -2.0, 0.5])
    family = quell.Flow(3, made(kind)).around(Gaussian(mean, factor=factor))
    for z in np.random.default_rng(0).normal(size=(3, 3)):
        expected = jax.scipy.stats.multivariate_normal.logpdf(z, mean, factor @ factor.T)
        np.testing.assert_allclose(family.log_prob(family.init(), jnp.asarray(z)), expected, rtol=1e-10)


@pytest.mark.parametrize(
    "kind", ["default", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("one", *WITH_NETWORKS))]
)
def test_densities_and_scores_are_those_of_the_inverse(kind):
    dim = 1 if kind == "one" else 3
    family = quell.Flow(dim, None if kind in ("default", "one") else made(kind))
    family = family.around(Gaussian(jnp.arange(float(dim)), factor=0.5 * jnp.tril(jnp.ones((dim, dim)))))
    params, noise = moved(family), jnp.asarray(np.random.default_rng(1).normal(size=(4, dim)))
    weight = jnp.array([1.0, -2.0, 0.5, 3.0])

    def found_and_expected(params, transport):
        algebra = family.algebra(params, noise)
        z, score = algebra.latents(transport), algebra.score(weight, transport)
        scores = jax.vmap(lambda at, w: jax.grad(lambda one: w * family.log_prob(one, at))(params))(z, weight)
        found = algebra.log_probs(transport), algebra.log_prob_grads(transport), algebra.dense(score)
        densities, slopes = jax.vmap(jax.value_and_grad(lambda at: family.log_prob(params, at)))(z)
        means = jax.tree.map(lambda leaf: leaf.mean(0), scores)
        return (*found, algebra.pullback(score)), (densities, slopes, scores, means)

    for transport in (quell.families.SAMPLE, quell.MIRRORED):
        all_close(*jax.jit(functools.partial(found_and_expected, transport=transport))(params))


def test_the_change_of_variables_is_the_path_and_the_score():
    family, model = quell.Flow(2), quell.from_numpyro(banana)
    draw = Sampler(5).draw(KEY, family, 1, jnp.float64)

    @jax.jit
    def whole_and_parts(params):
        evaluation = Evaluation(Problem(model, family), params, draw)
        whole = quell.ChangeOfVariables().estimate(evaluation, quell.Variational())
        path = quell.Reparameterization().estimate(evaluation, quell.Variational())
        score = quell.ScoreFunction().estimate(evaluation, quell.Score())
        return tuple(evaluation.algebra.dense(each) for each in (whole, path + score))

    all_close(*whole_and_parts(moved(family)))


def test_a_bent_posterior_is_fitted():
    """The evidence is that of the datum; the best Gaussian is 0.77 nats below it."""
    evidence = float(dist.Normal(0.0, 1.0).log_prob(0.0))
    result = quell.fit(quell.from_numpyro(banana), quell.Flow, key=KEY, steps=1000)
    assert evidence - 0.06 < result.final_elbo.value < evidence + 0.01
    assert result.final_khat.value < 0.75
    assert "Around a FullRank of ELBO -1.6" in result.choice.reason
    assert repr(result.problem.family) == "Flow(dim=2, num_params=456)"
    draws = result.sample(jax.random.key(1), 20_000)
    np.testing.assert_allclose(jnp.mean(draws["y"] - draws["x"] ** 2 + 1.0), 0.0, atol=0.05)


@pytest.mark.slow
def test_what_is_returned_is_never_below_the_gaussian():
    """Steps that are far too long end somewhere else."""
    model = quell.from_numpyro(gaussian)
    result = quell.fit(model, quell.Flow(1), key=KEY, steps=40, optimizer=optax.sgd(1e3))
    assert isinstance(result.problem.family, quell.FullRank)
    assert "was not better than the FullRank" in result.choice.reason
    np.testing.assert_allclose(result.final_elbo.value, dist.Normal(1.0, 4.25**0.5).log_prob(0.3), atol=1e-3)


@pytest.mark.slow
def test_a_flow_that_is_ended_says_so_whatever_is_returned():
    """By a callback that waits for the flow, and by steps beyond all numbers."""
    model, calls = quell.from_numpyro(gaussian), []

    def ends_the_flow(progress):
        calls.append(progress.params)
        return not isinstance(progress.params, quell.LocationScale)

    stopped = quell.fit(model, quell.Flow(1), key=KEY, optimizer=optax.sgd(1e3), callback=ends_the_flow)
    assert stopped.status is quell.Status.STOPPED
    assert isinstance(calls[0], quell.LocationScale)
    with pytest.raises(quell.DivergenceError):
        quell.fit(model, quell.Flow(1), key=KEY, steps=40, optimizer=optax.sgd(jnp.inf), throw=True)


def test_parameters_go_on_around_their_gaussian():
    model = quell.from_numpyro(banana)
    result = quell.fit(model, quell.Flow, key=KEY, steps=60)
    again = quell.fit(model, result.problem.family, params=result.params, key=KEY, steps=1, optimizer=optax.sgd(0.0))
    np.testing.assert_allclose(again.final_elbo.value, result.final_elbo.value)
    with pytest.raises(ValueError, match=r"result\.problem\.family"):
        quell.fit(model, quell.Flow, params=result.params, key=KEY)
    with pytest.raises(ValueError, match="not with both"):
        quell.Flow(2).around(Gaussian(jnp.zeros(2), factor=jnp.eye(2), variance=jnp.ones(2)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["block_neural_autoregressive_flow", "coupling_flow", "planar_flow", "triangular_spline_flow"]
)
def test_other_flows_are_fitted(kind):
    result = quell.fit(quell.from_numpyro(banana), quell.Flow(2, made(kind, 2)), key=KEY, steps=1000)
    assert result.final_elbo.value > -1.5


def test_the_gaussian_of_many_coordinates_is_mean_field():
    family = quell.Flow(3)
    assert isinstance(family.begins_with, quell.FullRank)
    assert isinstance(quell.Flow(401).begins_with, quell.MeanField)
    around = family.around(Gaussian(jnp.arange(3.0), variance=jnp.array([1.0, 4.0, 9.0])))
    np.testing.assert_allclose(around.sample(around.init(), jnp.ones(3)), [1.0, 3.0, 5.0])
    expected = jax.scipy.stats.norm.logpdf(jnp.zeros(3), jnp.arange(3.0), jnp.array([1.0, 2.0, 3.0])).sum()
    np.testing.assert_allclose(around.log_prob(around.init(), jnp.zeros(3)), expected)


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("dim", [2, 5, 9, 30])
def test_the_masked_layer_is_autoregressive_and_has_an_inverse(dim, is_reversed):
    made = MaskedAffine(dim, 8, is_reversed=is_reversed, seed=0)
    x = jax.random.normal(KEY, (dim,))
    np.testing.assert_allclose(made.transform(x), x, rtol=1e-12)
    weights, biases = (
        jax.tree.map(lambda leaf: 0.3 * jax.random.normal(KEY, leaf.shape), one) for one in (made.weights, made.biases)
    )
    some = eqx.tree_at(lambda layer: (layer.weights, layer.biases), made, (weights, biases))
    y, log_det = some.transform_and_log_det(x)
    jacobian = jax.jacobian(some.transform)(x)
    before = np.triu if is_reversed else np.tril
    np.testing.assert_array_equal(jacobian, before(jacobian))
    seen = np.count_nonzero(jacobian - np.diag(np.diag(jacobian)), axis=1)[:: -1 if is_reversed else 1]
    before_it = np.arange(dim)
    if dim <= 9:
        np.testing.assert_array_equal(seen, before_it)
    else:  # more coordinates than units: all but the nearest few
        assert np.all(seen >= before_it - np.ceil((dim - 1) / 8))
    np.testing.assert_allclose(log_det, jnp.linalg.slogdet(jacobian)[1], rtol=1e-12)
    back, inverse_log_det = some.inverse_and_log_det(y)
    np.testing.assert_allclose(back, x, rtol=1e-9)
    np.testing.assert_allclose(inverse_log_det, -log_det, rtol=1e-9)


def test_flows_that_do_not_suit_are_refused():
    with pytest.raises(TypeError, match="distribution of flowjax"):
        quell.Flow(2, "coupling")
    with pytest.raises(ValueError, match="no parameters"):
        quell.Flow(2, Transformed(StandardNormal((2,)), Flip((2,))))
    with pytest.raises(ValueError, match="shape \\(2,\\)"):
        quell.Flow(2, made("coupling_flow", 3))
    slow = flows.masked_autoregressive_flow(KEY, base_dist=StandardNormal((2,)))
    assert isinstance(slow.bijection, Invert)
    with pytest.raises(ValueError, match="invert=False"):
        quell.Flow(2, slow)
    with pytest.raises(ValueError, match="StandardNormal"):
        quell.Flow(2, Transformed(Cauchy(jnp.ones(2)), made("coupling_flow", 2).bijection))
    with pytest.raises(ValueError, match="at least 1"):
        quell.Flow(0)


def test_without_flowjax_the_extra_is_named(monkeypatch):
    for name in [one for one in sys.modules if one.partition(".")[0] == "flowjax"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, adapter.__name__)
    monkeypatch.setitem(sys.modules, "flowjax", None)
    with pytest.raises(ModuleNotFoundError, match=r"quell\[flows\]"):
        quell.Flow  # noqa: B018
