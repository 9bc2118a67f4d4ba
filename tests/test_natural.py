# SPDX-License-Identifier: Apache-2.0
"""Natural-gradient steps: the metric against automatic differentiation, the steps against exact posteriors."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import quell
from quell.families.full_rank_geometry import WhitenedDirection
from quell.families.low_rank_geometry import LowRankGeometry
from tolerances import EXACT

METRIC = {"rtol": 1e-8, "atol": 1e-8}
EXACT_BASE = quell.BaseGradient(quell.ClosedForm(full_data=True), quell.ClosedForm(), quell.ClosedForm())

GEOMETRIES = {
    "mean-field": (quell.MeanField(3), None),
    "mean-field, plain": (quell.MeanField(3, log_scale=False), None),
    "full-rank": (quell.FullRank(3), None),
    "full-rank, plain": (quell.FullRank(3, log_scale=False), None),
    "low-rank": (quell.LowRank(5, rank=2), LowRankGeometry(num_products=500, damping=0.0)),
}
"""Families, and a geometry to test instead of their own."""


def somewhere(family, seed=0):
    """Parameters with every entry in use."""
    flat, unravel = ravel_pytree(family.init())
    noise = 0.3 * jax.random.normal(jax.random.key(seed), flat.shape)
    params = unravel(flat + noise)
    if isinstance(family, quell.FullRank):
        return params._replace(scale=jnp.tril(params.scale) + 0.0)
    return params


def free(family, params):
    """Which flat entries are parameters: not those above the diagonal of a full-rank scale."""
    flat, _ = ravel_pytree(params)
    if not isinstance(family, quell.FullRank):
        return np.arange(flat.size)
    mask = params._replace(loc=jnp.ones_like(params.loc), scale=jnp.tril(jnp.ones_like(params.scale)))
    return np.flatnonzero(np.asarray(ravel_pytree(mask)[0]))


def covariance(family, params):
    return family.covariance_product(params, jnp.eye(family.dim))


def divergence(family, one, two):
    """KL of two Gaussians, the textbook way, with dense matrices."""
    first, second = covariance(family, one), covariance(family, two)
    step = family.mean(two) - family.mean(one)
    inverse = jnp.linalg.inv(second)
    log_dets = jnp.linalg.slogdet(second)[1] - jnp.linalg.slogdet(first)[1]
    return 0.5 * (jnp.trace(inverse @ first) + step @ inverse @ step - family.dim + log_dets)


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.slow
def test_direction_is_the_inverse_fisher_times_the_gradient(name):
    family, exact = GEOMETRIES[name]
    geometry = exact or family.geometry
    params = somewhere(family)
    flat, unravel = ravel_pytree(params)
    at = free(family, params)
    fisher = jax.jit(jax.hessian(lambda w: divergence(family, params, unravel(w))))(flat)[np.ix_(at, at)]
    # Any gradient of a function of the distribution; it has no part along rotations of a low-rank factor.
    target = jnp.linspace(-1.0, 1.0, family.dim)
    matrix = jnp.outer(target, target) + 2.0 * jnp.eye(family.dim)
    grad = jax.jit(jax.grad(lambda w: family.mean(w) @ target + jnp.sum(matrix * covariance(family, w))))(params)
    expected = jnp.linalg.pinv(fisher, rtol=1e-11) @ ravel_pytree(grad)[0][at]
    direction = eqx.filter_jit(geometry.direction)(params, grad)
    moved = jax.jit(jax.jacfwd(lambda rate: geometry.move(params, direction, rate)))(jnp.array(0.0))
    if isinstance(family, quell.LowRank):  # the solution is not unique: compare what it does to the distribution
        step = jnp.zeros_like(flat).at[at].set(expected)
        change = jax.jvp(lambda w: covariance(family, unravel(w)), (flat,), (step,))[1]
        found = jax.jvp(lambda w: covariance(family, unravel(w)), (flat,), (ravel_pytree(moved)[0],))[1]
        np.testing.assert_allclose(found, change, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(moved.loc, unravel(step).loc, **METRIC)
    else:
        np.testing.assert_allclose(ravel_pytree(moved)[0][at], expected, **METRIC)
    sq_norm = geometry.sq_norm(params, direction)
    np.testing.assert_allclose(sq_norm, ravel_pytree(grad)[0][at] @ expected, rtol=1e-6)


@pytest.mark.parametrize("family", [quell.MeanField, quell.FullRank])
def test_a_step_does_not_depend_on_the_parameterisation(family):
    logs, plain = family(3), family(3, log_scale=False)
    start = somewhere(logs)
    if family is quell.FullRank:
        same = start._replace(scale=logs.scale_tril(start))
    else:
        same = start._replace(scale=jnp.exp(start.scale))
    model = quell.logistic_regression(np.eye(3) + 0.5, [0, 1, 1])
    ends = []
    for one, params in ((logs, start), (plain, same)):
        problem = quell.Problem(model, one)
        grad = jax.grad(lambda w, p=problem: -quell.exact_elbo(p, w) / 3)(params)
        optimizer = quell.natural_gradient(problem, 0.7)
        updates, _ = optimizer.update(grad, optimizer.init(params), params)
        ends.append((one, optax.apply_updates(params, updates)))
    (one, first), (two, second) = ends
    np.testing.assert_allclose(one.mean(first), two.mean(second), **EXACT)
    np.testing.assert_allclose(covariance(one, first), covariance(two, second), **EXACT)


def test_one_step_reaches_a_conjugate_posterior():
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(20, 3)), rng.normal(size=20)
    model = quell.gaussian_regression(features, targets, noise=0.5)
    problem = quell.Problem(model, quell.FullRank(3))
    result = quell.fit(
        model,
        problem.family,
        variates=(),
        base=EXACT_BASE,
        optimizer=quell.natural_gradient(problem, max_kl=1e9),
        steps=1,
        key=jax.random.key(0),
        sampler=quell.Sampler(),
    )
    precision = np.eye(3) + features.T @ features / 0.25
    np.testing.assert_allclose(covariance(problem.family, result.params), np.linalg.inv(precision), **EXACT)
    np.testing.assert_allclose(result.params.loc, np.linalg.solve(precision, features.T @ targets / 0.25), **EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("family", [quell.MeanField(61), quell.FullRank(61), quell.LowRank(61, rank=5)])
def test_a_few_exact_steps_reach_the_optimum(family, unchecked):
    data = quell.paper.load("sonar")
    model = quell.logistic_regression(data.features, data.labels)
    problem = quell.Problem(model, family)
    optimizer = quell.natural_gradient(problem, max_kl=100.0)
    value_and_grad = jax.jit(jax.value_and_grad(lambda w: -quell.exact_elbo(problem, w) / model.num_data))

    @jax.jit
    def advance(params, state):
        updates, state = optimizer.update(value_and_grad(params)[1], state, params)
        return optax.apply_updates(params, updates), state

    params, elbos = family.init(), []
    state = optimizer.init(params)
    for _ in range(200):
        params, state = advance(params, state)
        elbos.append(-model.num_data * float(value_and_grad(params)[0]))
    enough = {quell.MeanField: 80, quell.FullRank: 6, quell.LowRank: 150}[type(family)]
    assert elbos[enough - 1] > max(elbos) - 0.5
    if isinstance(family, quell.FullRank):
        np.testing.assert_allclose(elbos[9:], -110.038, atol=1e-3)
    assert not isinstance(family, quell.MeanField) or elbos[-1] > max(elbos) - 1e-3


@pytest.mark.parametrize("family", [quell.MeanField(3), quell.FullRank(3)])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_scales_stay_positive_where_the_target_curves_upwards(family, rate):
    problem = quell.Problem(quell.logistic_regression(np.eye(3), [0, 1, 1]), family)
    optimizer = quell.natural_gradient(problem, rate, max_kl=1e9)
    params = somewhere(family)
    # The gradient of E z'Hz / 2 with a large positive H: no precision is left, and then some.
    grad = jax.grad(lambda w: -20.0 * jnp.sum(family.variance(w)))(params)
    updates, _ = optimizer.update(grad, optimizer.init(params), params)
    after = optax.apply_updates(params, updates)
    eigenvalues = jnp.linalg.eigvalsh(covariance(family, after))
    assert jnp.all(jnp.isfinite(eigenvalues))
    assert jnp.all(eigenvalues > 0)


def test_the_trust_region_bounds_the_divergence():
    family = quell.FullRank(3)
    problem = quell.Problem(quell.logistic_regression(np.eye(3), [0, 1, 1]), family)
    params = somewhere(family)
    grad = jax.tree.map(lambda leaf: 1e6 * jnp.tril(jnp.ones_like(leaf)) if leaf.ndim == 2 else 1e6 + leaf, params)
    for max_kl in (1e-6, 1e-4):
        optimizer = quell.natural_gradient(problem, max_kl=max_kl)
        updates, _ = optimizer.update(grad, optimizer.init(params), params)
        went = divergence(family, optax.apply_updates(params, updates), params)
        np.testing.assert_allclose(went, max_kl, rtol=0.1)


def test_a_zero_gradient_stays_where_it_is():
    family = quell.FullRank(2)
    problem = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), family)
    optimizer, params = quell.natural_gradient(problem), somewhere(family)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    np.testing.assert_allclose(ravel_pytree(updates)[0], 0.0, atol=1e-14)


def test_the_same_arguments_give_the_same_optimiser():
    problem = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), quell.FullRank(2))
    assert quell.natural_gradient(problem, 0.5) is quell.natural_gradient(problem, 0.5)
    assert quell.natural_gradient(problem, 0.5) is not quell.natural_gradient(problem, 0.4)
    assert quell.harmonic_schedule(10) is quell.harmonic_schedule(10)


def test_the_schedule_averages():
    schedule = quell.harmonic_schedule(1.0)
    state = 0.0
    for count, value in enumerate([3.0, 1.0, 5.0, 7.0]):
        state += float(schedule(count)) * (value - state)
    np.testing.assert_allclose(state, 4.0, **EXACT)


def test_a_schedule_is_followed_and_its_state_fits_a_self_tuned_rate():
    """Gradients that turn back at every step, as those of pure noise do."""
    problem = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), quell.FullRank(2))
    params = problem.family.init()
    schedule = optax.cosine_decay_schedule(0.2, 30)

    def rates(optimizer, state):
        update, found = jax.jit(optimizer.update), []
        for count in range(30):
            grads = jax.tree.map(lambda leaf, sign=(-1) ** count: sign * jnp.ones_like(leaf), params)
            _, state = update(grads, state, params)
            found.append(float(state.rate))
        return np.array(found)

    free, scheduled = quell.natural_gradient(problem), quell.natural_gradient(problem, schedule)
    given = np.array([float(schedule(count)) for count in range(30)])
    assert (rates(free, free.init(params))[8:20] < given[8:20]).all()
    np.testing.assert_allclose(rates(scheduled, scheduled.init(params)), given, **EXACT)
    np.testing.assert_allclose(rates(scheduled, free.init(params)), given, **EXACT)


@pytest.mark.parametrize("family", [quell.MeanField(3), quell.FullRank(3), quell.LowRank(3, rank=2)])
def test_the_scale_may_go_slower_than_the_location(family):
    """It moves as at a lower rate, and the location twice as far as then."""
    problem = quell.Problem(quell.logistic_regression(np.eye(3) + 0.5, [0, 1, 1]), family)
    params = somewhere(family)
    grads = jax.tree.map(lambda leaf: 0.1 * leaf, params)

    def moves(rate, **options):
        optimizer = quell.natural_gradient(problem, rate, momentum=0.0, **options)
        return optimizer.update(grads, optimizer.init(params), params)[0]

    slower, short = moves(0.2, scale_rate=0.5), moves(0.1)
    np.testing.assert_allclose(slower.loc, 2 * short.loc, **EXACT)
    for one, other in zip(jax.tree.leaves(slower._replace(loc=0)), jax.tree.leaves(short._replace(loc=0)), strict=True):
        np.testing.assert_allclose(one, other, **EXACT)
    assert float(jnp.max(jnp.abs(short.loc))) > 1e-5


@pytest.mark.parametrize("family", [quell.MeanField(2), quell.FullRank(2)])
def test_a_slower_scale_has_the_bounds_of_its_own_rate(family):
    """A precision of 0.4 times the old one is too little for a rate of 0.15, and would not be for 0.3."""
    geometry, params = family.geometry, family.init()
    kind = type(geometry.direction(params, params))
    shrinking = jnp.array([4.0, 0.0])
    direction = kind(jnp.zeros(2), shrinking if kind is not WhitenedDirection else jnp.diag(shrinking))
    slower = geometry.move(params, direction, jnp.asarray(0.3), 0.5)
    np.testing.assert_allclose(slower.scale, geometry.move(params, direction, jnp.asarray(0.15)).scale, **EXACT)
    alone = geometry.move(params, jax.tree.map(lambda leaf: 0.5 * leaf, direction), jnp.asarray(0.3))
    assert float(jnp.max(jnp.abs(alone.scale - slower.scale))) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_low_rank_scale_stays_large_enough_for_the_precision(dtype):
    """Steps that make the diagonal ever smaller, as noise may do."""
    family = quell.LowRank(4, rank=2)
    geometry, factor = family.geometry, np.random.default_rng(0).normal(size=(4, 2))
    params = family.init()._replace(factor=jnp.asarray(factor))
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
    nothing = jax.tree.map(jnp.zeros_like, params)
    shrinking = geometry.direction(params, nothing)._replace(log_scale=-jnp.ones(4, dtype))
    for _ in range(60):
        params = geometry.move(params, shrinking, jnp.asarray(1.0, dtype))
    share = jnp.exp(params.log_scale) / jnp.linalg.norm(params.factor, axis=1)
    np.testing.assert_allclose(share, float(jnp.finfo(dtype).eps) ** (1 / 3), rtol=1e-5)
    grad = jax.tree.map(jnp.ones_like, params)
    assert all(jnp.isfinite(leaf).all() for leaf in geometry.direction(params, grad))


@pytest.mark.slow
def test_a_low_rank_factor_whose_rows_are_alike_has_a_root_where_all_scales_are_least():
    family = quell.LowRank(2000, rank=3)
    geometry, params = family.geometry, family.init()
    params = params._replace(factor=jnp.ones_like(params.factor), log_scale=jnp.full(2000, -30.0))
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    still = geometry.direction(params, jax.tree.map(jnp.zeros_like, params))
    moved = geometry.move(params, jax.tree.map(jnp.zeros_like, still), jnp.asarray(0.1, jnp.float32))
    direction = geometry.direction(moved, jax.tree.map(jnp.ones_like, moved))
    assert all(jnp.isfinite(leaf).all() for leaf in direction)


def test_the_trust_region_is_that_of_the_slower_scale():
    problem = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), quell.FullRank(2))
    params = problem.family.init()
    grads = params._replace(loc=jnp.zeros(2), scale=jnp.diag(jnp.array([100.0, 1.0])))
    steps = []
    for share in (1.0, 0.25):
        optimizer = quell.natural_gradient(problem, 0.5, max_kl=0.02, scale_rate=share)
        updates, _ = optimizer.update(grads, optimizer.init(params), params)
        steps.append(optax.apply_updates(params, updates).scale)
    np.testing.assert_allclose(*steps, **EXACT)


def test_what_cannot_be_used_is_refused():
    problem = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), quell.FullRank(2))
    with pytest.raises(ValueError, match=r"`learning_rate` .* got"):
        quell.natural_gradient(problem, 1.5)
    with pytest.raises(ValueError, match="max_kl"):
        quell.natural_gradient(problem, max_kl=0.0)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="scale_rate"):
            quell.natural_gradient(problem, scale_rate=share)
    optimizer = quell.natural_gradient(problem)
    params = problem.family.init()
    with pytest.raises(ValueError, match="`params` must be given"):
        optimizer.update(params, optimizer.init(params))
    other = quell.Problem(quell.logistic_regression(np.eye(2), [0, 1]), quell.Gamma(2))
    with pytest.raises(ValueError, match=r"has no known Fisher geometry; try `optax.adam"):
        quell.natural_gradient(other)
