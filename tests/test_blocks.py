# SPDX-License-Identifier: Apache-2.0
"""Weights by leaf and moments every few steps, against dense vectors in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import exact
import quell
from quell.evaluation import Evaluation
from tolerances import EXACT, EXPECTATION

pytestmark = pytest.mark.slow

N = catalogue.NUM_DATA
MODEL = catalogue.MODELS["logistic"]
PRODUCT = quell.Product({"b": quell.FullRank(1, init_scale=1.0), "a": quell.MeanField(1, init_scale=1.0)})
FAMILIES = {**catalogue.FAMILIES, "product": PRODUCT}
RP, CF, SF = quell.Reparameterization(), quell.ClosedForm(), quell.ScoreFunction()
FEW = (
    quell.ControlVariate(quell.Variational(), RP, CF),
    quell.ControlVariate(quell.Data(), RP, CF, quell.TaylorInLatent()),
    quell.ControlVariate(quell.Score(), SF, CF),
)


def params_of(family):
    if family is PRODUCT:
        return jax.tree.map(lambda leaf: leaf + 0.1, family.init(dtype=jnp.float64))
    return catalogue.some_params(family)


def rows_of(gradient, evaluation, state):
    """Base gradient and variates of the ELBO a datum: for each leaf `[sample, replicate, parameter]`."""
    dense = [evaluation.algebra.dense(s) for s in gradient.samples(evaluation, state)]
    leaves = zip(*(jax.tree.leaves(tree) for tree in dense), strict=True)
    return [np.stack([np.reshape(one, (one.shape[0], -1)) for one in leaf]) / N for leaf in leaves]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_there_are_as_many_parameters_in_the_leaves_as_in_all(family):
    assert sum(family.num_leaf_params) == family.num_params
    assert len(family.num_leaf_params) == len(jax.tree.leaves(family.init()))


@pytest.mark.parametrize("sampler", [quell.Sampler(3, 2), quell.Sampler(3, 2, shared=True)], ids=["own", "shared"])
@pytest.mark.parametrize("name", ["mean-field", "full-rank", "full-rank raw", "product"])
def test_each_leaf_follows_the_textbook(name, sampler, key):
    family = FAMILIES[name]
    problem, params = quell.Problem(MODEL, family), params_of(family)
    variates = quell.paper.variates("S7") if name.startswith("full-rank") else FEW
    rule = quell.Rule(decay=0.1, v0=0.01, by_leaf=True)
    gradient = quell.Gradient(problem, variates, sampler=sampler, rule=rule)
    update = jax.jit(lambda *args: gradient.update_from_draw(*args))
    state, num_leaves, num = gradient.init(params), len(family.num_leaf_params), len(variates)
    total, mass, units = np.zeros((num_leaves, num + 1, num + 1)), 0.0, 1 if sampler.shared else 3
    for step in range(3):
        draw = sampler.draw(jax.random.fold_in(key, step), family, N, jnp.float64)
        rows = rows_of(gradient, Evaluation(problem, params, draw), state)
        rows = [row.mean(axis=1, keepdims=True) for row in rows] if sampler.shared else rows
        joint = np.stack([np.einsum("knd,lnd->kl", row, row) / units for row in rows])
        weights = np.zeros((num_leaves, num))
        if step:
            count = units * sum(0.9**t for t in range(1, step + 1))
            for leaf, num_params in enumerate(family.num_leaf_params):
                average, ridge = total[leaf] / mass, num_params * 0.01 / count * np.eye(num)
                weights[leaf] = -np.linalg.solve(ridge + average[1:, 1:], average[1:, 0])
        combined = [row[0] + np.tensordot(w, row[1:], axes=1) for w, row in zip(weights, rows, strict=True)]
        loss_grad, state, info = update(draw, params, state)
        np.testing.assert_allclose(info.weights, weights, **EXACT)
        for leaf, truth in zip(jax.tree.leaves(loss_grad), combined, strict=True):
            np.testing.assert_allclose(leaf.ravel(), -truth.mean(axis=0), **EXACT)
        norms = [
            np.sum([np.mean(np.sum(row**2, axis=-1)) for row in some]) for some in ([r[0] for r in rows], combined)
        ]
        np.testing.assert_allclose([info.base_sq_norm, info.combined_sq_norm], norms, **EXACT)
        total, mass = 0.9 * total + 0.1 * joint, 0.9 * mass + 0.1


def test_the_leaves_add_up(key):
    problem = quell.Problem(MODEL, FAMILIES["full-rank"])
    params, sampler = catalogue.some_params(problem.family), quell.Sampler(3, 2)
    gradient = quell.Gradient(problem, quell.paper.variates("S7"), sampler=sampler)
    draw = sampler.draw(key, problem.family, N, jnp.float64)
    evaluation = Evaluation(problem, params, draw)
    samples, at = gradient.samples(evaluation, gradient.init(params)), evaluation.algebra
    np.testing.assert_allclose(at.leaf_grams(samples).sum(axis=0), at.gram(samples), **EXACT)
    np.testing.assert_allclose(at.mean_leaf_grams(samples).sum(axis=0), at.mean_gram(samples), **EXACT)


def test_with_one_leaf_it_is_the_same(key):
    model = quell.Model(
        lambda z, batch: batch * z.sum() - jnp.logaddexp(0.0, z.sum()),
        lambda z: 0.3 * z.sum(),
        jnp.array([0.0, 1.0, 1.0]),
        jnp.zeros(2),
    )
    problem = quell.Problem(model, quell.Bernoulli(2))
    variate = quell.ControlVariate(quell.Score(), SF, CF)
    found = []
    for by_leaf in (False, True):
        rule = quell.Rule(by_leaf=by_leaf)
        base = quell.BaseGradient(SF, SF, CF)
        gradient = quell.Gradient(problem, [variate], base, quell.Sampler(4, 2), rule)
        params = problem.family.init(dtype=jnp.float64)
        state = gradient.init(params)
        for step in range(3):
            grad, state, info = gradient.update(jax.random.fold_in(key, step), params, state)
        found.append((grad.logits, info.weights.ravel(), info.combined_sq_norm))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), *found)


@pytest.mark.parametrize("rule", [quell.Rule(by_leaf=True), quell.Rule(by_leaf=True, metric="natural", every=2)])
def test_it_is_unbiased(rule, key):
    """The exact expectation over noise and minibatches, at weights that earlier steps have learned."""
    problem = quell.Problem(MODEL, FAMILIES["full-rank"])
    params = catalogue.some_params(problem.family)
    gradient = quell.Gradient(problem, FEW, sampler=quell.Sampler(3, 2), rule=rule)
    state = gradient.init(params)
    for step in range(3):
        _, state, _ = gradient.update(jax.random.fold_in(key, step), params, state)
    assert np.abs(gradient.weights(state)).max() > 0.1
    draw, mass = exact.exact_draw(problem, 2)
    evaluation = Evaluation(problem, params, draw)
    samples = gradient.samples(evaluation, state)
    totals = gradient._combined(samples[0], dict(enumerate(samples[1:])), gradient.weights(state))
    means = [exact.expectation(total, evaluation, mass) for total in totals]
    truth = jax.grad(lambda w: quell.exact_elbo(problem, w))(params)
    np.testing.assert_allclose(means[0].loc, truth.loc, **EXPECTATION)
    np.testing.assert_allclose(means[1].scale, jnp.tril(truth.scale), **EXPECTATION)


def test_moments_are_taken_every_few_steps(key):
    """As often as asked for, and what is learned is what a rule that sees those steps alone would learn."""
    problem = quell.Problem(MODEL, FAMILIES["full-rank"])
    params = catalogue.some_params(problem.family)
    sparse, every = (
        quell.Gradient(problem, FEW, sampler=quell.Sampler(3, 2), rule=quell.Rule(decay=0.1, every=k)) for k in (3, 1)
    )
    updates = [jax.jit(lambda *args, g=g: g.update(*args)) for g in (sparse, every)]
    state, seen = sparse.init(params), every.init(params)
    for step in range(7):
        now = jax.random.fold_in(key, step)
        weights = sparse.weights(state)
        np.testing.assert_allclose(weights, every.weights(seen), **EXACT)
        grad, state, info = updates[0](now, params, state)
        other, after, truth = updates[1](now, params, seen)
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), grad, other)
        if step % 3 == 0:
            seen = after
            np.testing.assert_allclose(info.combined_sq_norm, truth.combined_sq_norm, **EXACT)
            base = truth.base_sq_norm
        np.testing.assert_allclose(info.base_sq_norm, base, **EXACT)
    assert every.init(params).moments.held is None


def test_fits_side_by_side_take_moments_as_one_alone(key):
    problem = quell.Problem(MODEL, FAMILIES["mean-field"])
    gradient = quell.Gradient(problem, FEW, sampler=quell.Sampler(3, 2), rule=quell.Rule(every=2))
    params = catalogue.some_params(problem.family)
    state = gradient.init(params)
    for _ in range(2):
        _, state, _ = gradient.update(key, params, state)
    states = jax.tree.map(lambda one, two: jnp.stack([one, two]), gradient.init(params), state)
    odd = gradient.update(key, params, gradient.init(params))[1]
    states = jax.tree.map(lambda both, one: jnp.concatenate([both, one[None]]), states, odd)
    keys = jax.random.split(key, 3)
    _, together, _ = jax.vmap(lambda k, s: gradient.update(k, params, s))(keys, states)
    for fit in range(3):
        alone = gradient.update(keys[fit], params, jax.tree.map(lambda leaf, k=fit: leaf[k], states))[1]
        jax.tree.map(
            lambda one, two, k=fit: np.testing.assert_allclose(one[k], two, **EXACT), together.moments, alone.moments
        )


@pytest.mark.parametrize("every", [1, 3])
def test_a_variate_that_is_not_finite_is_dropped_from_all_leaves(every, key):
    def log_prior(z):
        return -0.5 * z @ z + jnp.where(z[0] > -50, 0.0, 0.0) * jnp.log(jnp.where(z[0] > 5e9, -1.0, 1.0))

    model = quell.Model(lambda z, batch: -0.5 * (batch - z[0]) ** 2, log_prior, jnp.arange(3.0), jnp.zeros(2))
    problem = quell.Problem(model, quell.FullRank(2))
    rule = quell.Rule(by_leaf=True, every=every)
    spoiled = quell.ControlVariate(quell.Data(), RP, CF, quell.AnchoredQuadratic(), label="spoiled")
    gradient = quell.Gradient(problem, [FEW[0], spoiled], sampler=quell.Sampler(3), rule=rule)
    params = problem.family.init(dtype=jnp.float64)
    state = gradient.init(params)
    broken = jax.tree.map(
        lambda leaf: leaf * jnp.nan if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, state.variates
    )
    state = type(state)(state.moments, (state.variates[0], broken[1]))
    for step in range(2):
        grad, after, info = gradient.update(jax.random.fold_in(key, step), params, state)
        state = type(state)(after.moments, state.variates)
        assert info.dropped.tolist() == [False, True]
        assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves((grad, info, after.moments.total)))
        assert not info.weights[:, 1].any()


def test_results_name_their_leaves(key, tmp_path):
    rule = quell.Rule(by_leaf=True)
    result = quell.fit(MODEL, quell.MeanField(2), variates=FEW[:2], rule=rule, steps=30, key=key)
    names = result.gradient.weight_names
    assert names[:2] == tuple(f"{variate.name}[loc]" for variate in FEW[:2])
    assert names[2].endswith("[scale]")
    assert result.history.weights.shape == (30, 4)
    assert f"{names[3]} " in repr(result)
    found = quell.diagnostics.contributions(key, result.gradient, result.params, result.state, num=40, budget=0.0)
    assert set(found.variates[0].weight) == {"loc", "scale"}
    noise = quell.diagnostics.gradient_variance(key, result.gradient, result.params, result.state, num=40)
    np.testing.assert_allclose(noise.total.combined.value, sum(b.combined.value for b in noise.blocks), **EXACT)
    page = result.report(tmp_path / "report.html", seconds=0.1).read_text()
    assert "loc<br>" in page


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every"),
        ({"metric": "manhattan"}, "One of"),
        ({"by_leaf": True, "prior": quell.NormalWishart(jnp.eye(2), jnp.zeros(2))}, "traces by leaf were needed"),
    ],
)
def test_settings_that_make_no_sense_are_explained(settings, message):
    with pytest.raises(ValueError, match=message):
        quell.Rule(**settings)
