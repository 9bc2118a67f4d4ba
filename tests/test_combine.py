# SPDX-License-Identifier: Apache-2.0
"""The rule against textbook computations, and against everything that may go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from quell.combine import (
    Moments,
    NormalWishart,
    Rule,
    averages,
    expected_sq_norm,
    init_moments,
    isotropic,
    observe,
    posterior,
    samples_per_mass,
    solve,
)
from tolerances import EXACT, ILL_CONDITIONED, ROUNDING, SHRUNK, STANDARD_ERRORS

D, L, M = 6, 3, 40
rng = np.random.default_rng(7)


def joint_of(h, c):
    """Average over evaluations of the inner products of [h, C]."""
    both = np.concatenate([h[:, :, None], c], axis=2)
    return jnp.asarray(np.einsum("mdk,mdl->kl", both, both) / len(h))


def draws(num, generator=rng):
    """Correlated Gaussian evaluations of a base gradient and variates of mean zero."""
    c = generator.normal(size=(num, D, L)) * np.array([1.0, 0.3, 2.0])
    h = 1.0 + 0.8 * c[:, :, 0] - 0.5 * c[:, :, 1] + 0.4 * generator.normal(size=(num, D))
    return h, c


def moments(num=M):
    return Moments.from_joint(joint_of(*draws(num)))


def test_weights_are_the_textbook_ones():
    average, v0 = moments(), 0.05
    prior = isotropic(v0, num_params=D, num_variates=L, dtype=jnp.float64)
    truth = -np.linalg.solve(D * v0 / M * np.eye(L) + average.gram, average.cross)
    np.testing.assert_allclose(solve(prior, average, jnp.asarray(float(M))), truth, **EXACT)


def test_general_prior_and_its_strength():
    average = moments()
    a = rng.normal(size=(L, L))
    gram, cross = jnp.asarray(a @ a.T), jnp.asarray(rng.normal(size=L))
    truth = -np.linalg.solve(gram / M + average.gram, cross / M + average.cross)
    for strength in (0.1, 1.0, 50.0):
        prior = NormalWishart(gram, cross, strength)
        np.testing.assert_allclose(solve(prior, average, jnp.asarray(float(M))), truth, **EXACT)
        kappa = strength / (strength + M)
        expected = kappa / strength * gram + (1 - kappa) * average.gram
        np.testing.assert_allclose(posterior(prior, average, jnp.asarray(float(M)))[0], expected, **EXACT)


def test_without_evidence_the_prior_decides():
    nothing = Moments(jnp.zeros((L, L)), jnp.zeros(L), jnp.zeros(()))
    prior = NormalWishart(2.0 * jnp.eye(L), jnp.array([1.0, -1.0, 0.0]))
    np.testing.assert_allclose(solve(prior, nothing, jnp.asarray(0.0)), [-0.5, 0.5, 0.0], **EXACT)


def test_without_prior_it_is_the_lemma():
    average = moments()
    prior = isotropic(0.0, num_params=D, num_variates=L, dtype=jnp.float64)
    weights = solve(prior, average, jnp.asarray(float(M)))
    np.testing.assert_allclose(weights, -np.linalg.solve(average.gram, average.cross), **EXACT)
    best = expected_sq_norm(average, weights)
    for _ in range(20):
        assert expected_sq_norm(average, weights + 0.1 * rng.normal(size=L)) > best


def test_weights_converge_to_the_lemma():
    """Known moments: C has variances 1, 0.09, 4 and h = 1 + 0.8 c1 - 0.5 c2 + noise, so a* = (-0.8, 0.5, 0)."""
    generator = np.random.default_rng(11)
    rule, state, runs = Rule(decay=0.002, v0=1e-3), init_moments(L, jnp.float64), []
    update = jax.jit(lambda s, j: rule.observe(s, j))
    for step in range(6000):
        state = update(state, joint_of(*draws(10, generator)))
        if step >= 3000 and step % 100 == 0:
            runs.append(rule.weights(state, num_units=10, num_params=D))
    mean, deviation = np.mean(runs, axis=0), np.std(runs, axis=0)
    assert np.all(np.abs(mean - np.array([-0.8, 0.5, 0.0])) < STANDARD_ERRORS * deviation / np.sqrt(len(runs) / 10))
    assert np.all(deviation < 0.05)


def test_exponential_average_is_bias_corrected():
    decay, state = 0.1, init_moments(L, jnp.float64)
    joints = [joint_of(*draws(5)) for _ in range(4)]
    for joint in joints:
        state = observe(state, joint, decay=decay)
    weights = np.array([decay * (1 - decay) ** (3 - t) for t in range(4)])
    truth = np.tensordot(weights / weights.sum(), np.array(joints), axes=1)
    average = averages(state)
    np.testing.assert_allclose(average.gram, truth[1:, 1:], **EXACT)
    np.testing.assert_allclose(average.cross, truth[1:, 0], **EXACT)
    np.testing.assert_allclose(average.base, truth[0, 0], **EXACT)
    count = 10 * sum((1 - decay) ** t for t in range(1, 5))
    effective = samples_per_mass(num_units=10, decay=decay) * state.mass[0, 0]
    np.testing.assert_allclose(effective, count, **EXACT)
    rule = Rule(decay=decay, v0=0.05)
    ridge = D * 0.05 / count * np.eye(L)
    weights = -np.linalg.solve(ridge + truth[1:, 1:], truth[1:, 0])
    np.testing.assert_allclose(rule.weights(state, num_units=10, num_params=D), weights, **EXACT)


def test_first_weights_are_zero():
    rule = Rule()
    np.testing.assert_array_equal(rule.weights(rule.init(L, jnp.float64), num_units=10, num_params=D), np.zeros(L))
    assert rule.weights(rule.init(0, jnp.float64), num_units=10, num_params=D).shape == (0,)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("v0", [0.0, 1e-3])
def test_duplicates_share_their_weight(v0, dtype):
    h, c = draws(M)
    twice = np.concatenate([c, c[:, :, :1]], axis=2)
    single = _weights(joint_of(h, c).astype(dtype), v0 / 2)
    double = _weights(joint_of(h, twice).astype(dtype), v0)
    combined = twice @ np.asarray(double)
    np.testing.assert_allclose(double[0], double[3], rtol=ILL_CONDITIONED * jnp.finfo(dtype).eps)
    np.testing.assert_allclose(combined, c @ np.asarray(single), **SHRUNK)


def _weights(joint, v0):
    average = Moments.from_joint(joint)
    prior = isotropic(v0, num_params=D, num_variates=len(average.cross), dtype=joint.dtype)
    return solve(prior, average, jnp.asarray(float(M), joint.dtype))


@pytest.mark.parametrize("v0", [0.0, 1e-3])
def test_a_vanishing_variate_gets_no_weight(v0):
    h, c = draws(M)
    with_zero = np.concatenate([c, np.zeros((M, D, 1))], axis=2)
    weights = _weights(joint_of(h, with_zero), v0)
    assert weights[3] == 0.0
    np.testing.assert_allclose(weights[:3], _weights(joint_of(h, c), v0), **EXACT)


def test_all_variates_vanish():
    h, _ = draws(M)
    np.testing.assert_array_equal(_weights(joint_of(h, np.zeros((M, D, L))), 0.0), np.zeros(L))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_scales_do_not_matter_without_prior(dtype):
    h, c = draws(M)
    sizes = np.array([1e-6, 1.0, 1e6])
    plain, scaled = _weights(joint_of(h, c).astype(dtype), 0.0), _weights(joint_of(h, c * sizes).astype(dtype), 0.0)
    np.testing.assert_allclose(np.asarray(scaled) * sizes, plain, rtol=ROUNDING * jnp.finfo(dtype).eps)


def test_nan_in_one_variate_leaves_the_others_alone():
    rule, state, other = Rule(decay=0.1), init_moments(L, jnp.float64), init_moments(L, jnp.float64)
    for step in range(5):
        h, c = draws(10)
        other = rule.observe(other, joint_of(h, c))
        if step in (0, 3):
            c[4, 2, 1] = np.nan
        state = rule.observe(state, joint_of(h, c))
    assert bool(jnp.all(jnp.isfinite(state.total)))
    keep = np.array([0, 2])
    clean, seen = averages(other), averages(state)
    np.testing.assert_allclose(seen.gram[np.ix_(keep, keep)], clean.gram[np.ix_(keep, keep)], **EXACT)
    assert bool(jnp.all(jnp.isfinite(rule.weights(state, num_units=10, num_params=D))))
    assert seen.gram[1, 1] > 0


def test_a_variate_that_is_always_nan_gets_no_weight():
    rule, state = Rule(decay=0.1, v0=0.0), init_moments(L, jnp.float64)
    for _ in range(5):
        h, c = draws(10)
        c[:, :, 1] = np.nan
        state = rule.observe(state, joint_of(h, c))
    weights = rule.weights(state, num_units=10, num_params=D)
    assert weights[1] == 0.0
    assert bool(jnp.all(jnp.isfinite(weights)))
    assert abs(weights[0] + 0.8) < 0.3


def test_a_variate_seen_once_counts_as_seen_once():
    """After a long absence its own evidence meets the prior, not that of the others."""
    rule, first, late = Rule(decay=0.02, v0=0.5), init_moments(1, jnp.float64), init_moments(1, jnp.float64)
    h, c = draws(10)
    seen, absent = joint_of(h, c[:, :, :1]), joint_of(h, np.full((10, D, 1), np.nan))
    for _ in range(200):
        late = rule.observe(late, absent)
    weights = [rule.weights(rule.observe(s, seen), num_units=10, num_params=D) for s in (first, late)]
    np.testing.assert_allclose(weights[1], weights[0], **EXACT)


def test_an_infinite_product_of_two_variates_does_not_stay():
    rule, state = Rule(), init_moments(2, jnp.float64)
    joint = jnp.array([[1.0, 0.5, 0.5], [0.5, 1.0, jnp.inf], [0.5, jnp.inf, 1.0]])
    state = rule.observe(state, joint)
    assert bool(jnp.all(jnp.isfinite(rule.weights(state, num_units=1, num_params=3))))


@pytest.mark.parametrize("num", [1, 2, 3])
def test_the_quick_solve_is_the_least_norm_solution(num):
    """Where the matrix is regular both are the one solution; a zero prior and an exact copy leave only the second."""
    h, c = draws(M)
    matrix = Moments.from_joint(joint_of(h, c[:, :, :num]))
    truth = -np.linalg.pinv(matrix.gram) @ matrix.cross
    np.testing.assert_allclose(_weights(joint_of(h, c[:, :, :num]), 0.0), truth, **EXACT)
    copied = np.concatenate([c[:, :, :num], c[:, :, :1]], axis=2)
    found = _weights(joint_of(h, copied), 0.0)
    np.testing.assert_allclose(found[0], found[-1], rtol=ROUNDING * jnp.finfo(jnp.float64).eps)
    np.testing.assert_allclose(found[0] + found[-1], truth[0], rtol=ROUNDING * jnp.finfo(jnp.float64).eps)


def test_side_by_side_each_finds_its_own_solution():
    """A regular matrix and a singular one in one batch, as in fits side by side."""
    h, c = draws(M)
    singular = np.concatenate([c[:, :, :2], c[:, :, :1]], axis=2)
    both = jnp.stack([joint_of(h, c), joint_of(h, singular)])
    found = jax.vmap(lambda joint: _weights(joint, 0.0))(both)
    np.testing.assert_allclose(found[0], _weights(both[0], 0.0), **EXACT)
    np.testing.assert_allclose(found[1], _weights(both[1], 0.0), **EXACT)
    assert bool(jnp.all(jnp.isfinite(found)))
