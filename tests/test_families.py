# SPDX-License-Identifier: Apache-2.0
"""Families against SciPy, at their limits, and what is special about each; what they share is in `test_laws`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats
from scipy.linalg import sqrtm

import catalogue
import quell
from exact import all_close, enumeration, unit_interval
from quell.families import SAMPLE, Capability, FactoredGradient, Relaxation
from quell.families.quantile import log_gamma_quantile
from quell.families.symmetric_root import SymmetricRoot
from tolerances import DIFFERENCES, EXACT, EXPECTATION, NODES_IN_THREE, ROUNDING, SINGLE_SMALL

# Gamma, beta and low-rank


def test_densities_and_entropies_are_those_of_scipy():
    first, second = np.array([0.2, 3.0, 80.0]), np.array([0.5, 2.0, 40.0])
    logs = jnp.log(jnp.array([first, second]))
    wide = quell.LowRank(5, rank=2).init(dtype=jnp.float64)
    wide = wide._replace(factor=1e3 * wide.factor)
    covariance = np.diag(np.exp(2.0 * wide.log_scale)) + np.asarray(wide.factor @ wide.factor.T)
    for family, params, oracle in (
        (quell.Gamma(3), quell.GammaParams(*logs), scipy.stats.gamma(first, scale=1.0 / second)),
        (quell.Beta(3), quell.BetaParams(*logs), scipy.stats.beta(first, second)),
        (quell.LowRank(5, rank=2), wide, scipy.stats.multivariate_normal(np.zeros(5), covariance)),
    ):
        z = np.linspace(0.2, 0.9, family.dim)
        log_prob, entropy = jax.jit(lambda w, z, f=family: (f.log_prob(w, z), f.entropy(w)))(params, jnp.asarray(z))
        np.testing.assert_allclose(log_prob, np.sum(oracle.logpdf(z)), **EXACT)
        np.testing.assert_allclose(entropy, np.sum(oracle.entropy()), **EXACT)


def test_the_gamma_quantile_is_that_of_scipy():
    shape, u = np.meshgrid(
        [0.1, 0.29, 0.31, 0.5, 1.0, 3.0, 10.0, 100.0],
        [1e-12, 1e-6, 1e-3, 0.1, 0.3, 0.49, 0.5, 0.51, 0.7, 0.9, 0.999, 1 - 1e-6, 1 - 1e-12, 1 - 2**-53],
    )
    quantile = jax.jit(log_gamma_quantile)
    for dtype, rows in ((np.float64, 14), (np.float32, 12)):
        a, p = shape[:rows].astype(dtype), u[:rows].astype(dtype)
        truth = np.log(scipy.special.gammaincinv(a.astype(float), p.astype(float)))
        error = np.abs(quantile(jnp.asarray(a), jnp.asarray(p)) - truth) / np.maximum(1.0, np.abs(truth))
        assert error.max() < ROUNDING * np.finfo(dtype).eps


def test_the_gamma_quantile_has_the_slopes_of_its_differences():
    """Also where it is far below the smallest number: at shape 0.02 it starts from 1e-400."""
    shape, u = (jnp.asarray(x.ravel()) for x in np.meshgrid([0.02, 0.4, 2.0, 30.0], [1e-8, 0.2, 0.6, 0.99]))
    steps = 1e-5 * shape, 1e-5 * jnp.minimum(u, 1.0 - u)
    quantile = jax.jit(log_gamma_quantile)
    slopes = jax.jit(jax.grad(lambda *x: jnp.sum(log_gamma_quantile(*x)), (0, 1)))(shape, u)
    in_shape = quantile(shape + steps[0], u) - quantile(shape - steps[0], u)
    in_u = quantile(shape, u + steps[1]) - quantile(shape, u - steps[1])
    np.testing.assert_allclose(slopes[0] * shape, 0.5e5 * in_shape, **DIFFERENCES)
    np.testing.assert_allclose(slopes[1] * steps[1], 0.5 * in_u, **DIFFERENCES)


def test_a_low_rank_start_has_columns_that_differ():
    """At a factor of zero, or with equal columns, the exact gradient would never separate them."""
    for dim, rank in ((1, 1), (2, 1), (5, 5), (200, 8)):
        params = quell.LowRank(dim, rank=rank, init_scale=0.3).init(dtype=jnp.float64)
        assert np.linalg.matrix_rank(params.factor) == rank
        assert np.abs(params.factor).max() <= 0.03


# The symmetric square root

RNG = np.random.default_rng(3)
SCALES = {
    "general": np.tril(RNG.normal(size=(4, 4))) + 2 * np.eye(4),
    "identity": np.eye(4),
    "repeated": np.diag([2.0, 2.0, 0.5, 0.5]),
    "negative diagonal": np.tril(RNG.normal(size=(4, 4))) - 2 * np.eye(4),
}


@pytest.mark.parametrize("name", SCALES)
def test_the_symmetric_root_is_that_of_scipy_and_has_an_inverse(name):
    tril = SCALES[name]
    root, rows = SymmetricRoot.from_tril(jnp.asarray(tril)), RNG.normal(size=(3, 4))
    truth = np.real(sqrtm(tril @ tril.T))
    np.testing.assert_allclose(root.apply(jnp.asarray(rows)), rows @ truth, **EXACT)
    np.testing.assert_allclose(root.solve(jnp.asarray(rows)), rows @ np.linalg.inv(truth), **EXACT)


@pytest.mark.parametrize("name", SCALES)
def test_the_pullback_of_the_symmetric_root_is_its_derivative(name):
    """Also where eigenvalues meet."""
    tril, g, e = SCALES[name], RNG.normal(size=4), RNG.normal(size=4)
    root = SymmetricRoot.from_tril(jnp.asarray(tril))
    pulled = root.pullback(jnp.outer(g @ root.basis, e @ root.basis))
    rows = root.pullback_rows(jnp.asarray(g)[None], jnp.asarray(e)[None])[0]
    np.testing.assert_allclose(pulled, rows, **EXACT)
    step = 1e-5
    for i, j in np.ndindex(4, 4):
        moved = np.zeros((4, 4))
        moved[i, j] = step
        ahead, behind = tril + moved, tril - moved
        change = (np.real(sqrtm(ahead @ ahead.T)) - np.real(sqrtm(behind @ behind.T))) / (2 * step)
        np.testing.assert_allclose(pulled[i, j], g @ change @ e, **DIFFERENCES)


def test_small_values_of_the_symmetric_root_keep_their_digits_in_single_precision():
    tril = np.array([[1.0, 0.0], [0.5, 1e-4]], np.float32)
    truth = np.linalg.svd(tril.astype(np.float64), compute_uv=False).min()
    np.testing.assert_allclose(np.min(SymmetricRoot.from_tril(jnp.asarray(tril)).values), truth, **SINGLE_SMALL)


@pytest.mark.parametrize("name", ["mean-field", "full-rank raw"])
def test_the_mirrored_transport_is_the_first_one_at_the_noise_turned_round(name, key):
    family, params = catalogue.FAMILIES[name].family, catalogue.FAMILIES[name].params
    noise, weight, first = family.noise(key, 4, jnp.float64), jnp.arange(1.0, 5.0), family.sampling
    here, there = family.algebra(params, noise), family.algebra(params, -noise)
    np.testing.assert_allclose(here.latents(quell.MIRRORED), there.latents(first), **EXACT)
    np.testing.assert_allclose(here.log_probs(quell.MIRRORED), there.log_probs(first), **EXACT)
    np.testing.assert_allclose(here.log_prob_grads(quell.MIRRORED), there.log_prob_grads(first), **EXACT)
    mirrored, plain = here.score(weight, quell.MIRRORED), there.score(weight, first)
    all_close(here.dense(mirrored), there.dense(plain), EXACT)


# Relaxations of discrete families


@pytest.mark.parametrize("name", ["bernoulli", "two categories", "categorical"])
def test_the_relaxation_given_the_sample_leads_back_to_the_sample(name, key):
    family, params, *_ = catalogue.FAMILIES[name]
    algebra = family.algebra(params, family.noise(key, 200, jnp.float64))
    samples, given = algebra.latents(SAMPLE), algebra.latents(Relaxation(0.01, conditional=True))
    assert len(np.unique(samples, axis=0)) == len(family.support())
    np.testing.assert_array_equal(jnp.round(given), samples)


@pytest.mark.parametrize("name", ["bernoulli", "two categories", "categorical"])
def test_a_relaxation_has_the_same_distribution_whether_it_is_drawn_at_once_or_given_its_sample(name):
    family, params, *_ = catalogue.FAMILIES[name]
    num, tolerance = {2: (52, EXPECTATION), 3: (34, NODES_IN_THREE)}[family.dim]
    noise, mass = enumeration(family, params, num)
    given = np.asarray(family.algebra(params, jnp.asarray(noise)).latents(Relaxation(0.5, conditional=True)))
    grid, weights = unit_interval(num).power(family.dim)
    both = jnp.asarray(np.concatenate([grid, grid], axis=1))
    at_once = np.asarray(family.algebra(params, both).latents(Relaxation(0.5)))
    for function in (lambda z: z[:, 0], lambda z: z[:, 0] * z[:, 1], lambda z: np.cos(z).sum(1)):
        np.testing.assert_allclose(mass @ function(given), weights @ function(at_once), **tolerance)


def test_a_relaxation_stays_finite_where_uniform_numbers_round_to_one():
    noise = jnp.array([[0.6, 0.4, 1 - 2.0**-24, 2.0**-24]], jnp.float32)
    algebra = quell.Bernoulli(2).algebra(quell.Logits(jnp.zeros(2, jnp.float32)), noise)
    given = Relaxation(0.5, conditional=True)
    assert np.isfinite(algebra.latents(given)).all()
    assert np.isfinite(algebra.dense(FactoredGradient.from_path(given, jnp.ones((1, 2), jnp.float32))).logits).all()


# Products


def test_a_product_offers_what_all_of_its_blocks_offer():
    smooth, mixed = (catalogue.FAMILIES[name].family for name in ("blocks", "mixed blocks"))
    assert (smooth.num_leaf_params, mixed.num_leaf_params) == ((2, 3, 1, 1), (2, 1, 1))
    assert (smooth.transports, mixed.transports) == ((SAMPLE,), ())
    assert smooth.refuses(Capability.GAUSSIAN) is None
    assert mixed.refuses(Capability.GAUSSIAN) == "Product has no Gaussian linear functions of its latent"
    assert mixed.refuses(Capability.ENTROPY, Capability.MOMENTS, Capability.GENERALIZED) is None
    shared = quell.Product({"one": quell.Bernoulli(1), "two": quell.Bernoulli(1)})
    assert shared.refuses(Capability.GENERALIZED) == "Product has no generalized reparameterization"


# Fits


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gamma",
        *(pytest.param(one, marks=pytest.mark.release) for one in ("beta", "low-rank", "blocks", "mixed blocks")),
    ],
)
def test_a_fit_with_its_default_base_gradient_runs(name, key):
    model = next(model for model, family, _ in catalogue.CASES.values() if family == name)
    model, family = catalogue.MODELS[model], catalogue.FAMILIES[name].family
    result = quell.fit(model, family, key=key, variates=(), steps=3, optimizer=optax.sgd(0.01))
    assert result.status is quell.Status.COMPLETED
    assert np.isfinite(result.history.elbo).all()
    assert result.sample(key, 4).shape == (4, family.dim)


def test_a_fit_of_discrete_latents_finds_the_posterior(key):
    """One switch that all data agree on."""
    data = jnp.array([0.9, 1.2, 0.8, 1.1])
    model = quell.Model(lambda z, x: -0.5 * (x - z[0]) ** 2, lambda z: 0.0 * z[0], data, 1)
    result = quell.fit(model, quell.Bernoulli(1), steps=300, key=key, sampler=quell.Sampler(num_replicates=10))
    log_odds = jnp.sum(-0.5 * (data - 1.0) ** 2 + 0.5 * data**2)
    np.testing.assert_allclose(result.params.logits[0], log_odds, atol=0.1)
    assert set(np.unique(result.sample(jax.random.key(1), 50))) == {0.0, 1.0}
