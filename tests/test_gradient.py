# SPDX-License-Identifier: Apache-2.0
"""`Gradient.update` against a textbook computation with dense vectors in NumPy, and what it does with NaN."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from catalogue import FAMILIES, MODELS
from exact import all_close
from quell.approximations import AbstractApproximation
from quell.evaluation import Evaluation
from quell.terms import AbstractTerm
from tolerances import EXACT

RP, SF, CF = quell.Reparameterization(), quell.ScoreFunction(), quell.ClosedForm()
RP2 = quell.Reparameterization(quell.SYMMETRIC)
FEW = (
    quell.ControlVariate(quell.Variational(), RP, CF),
    quell.ControlVariate(quell.Data(), RP, CF, quell.TaylorInLatent()),
    quell.ControlVariate(quell.Score(), SF, CF),
)
OWN, SHARED, ALL = quell.Sampler(3, 2), quell.Sampler(3, 2, shared=True), quell.Sampler(3)


# The textbook


def dense_samples(gradient, params, draw, state):
    evaluation = Evaluation(gradient.problem, params, draw)
    return [jax.tree.leaves(evaluation.algebra.dense(s)) for s in gradient.samples(evaluation, state)]


def rows_of(gradient, dense, draw):
    """Base gradient and variates of the ELBO per datum: `[sample, replicate, parameter]`, for each set of weights."""
    flat = [[np.reshape(leaf, (len(draw.noise), -1)) for leaf in leaves] for leaves in dense]
    sets = zip(*flat, strict=True) if gradient.rule.by_leaf else [[np.concatenate(leaves, axis=1) for leaves in flat]]
    found = [np.stack(rows) / gradient.problem.model.num_data for rows in sets]
    return [rows.mean(axis=1, keepdims=True) if draw.is_shared else rows for rows in found]


TEXTBOOK = {
    "own": ("logistic", "full-rank", OWN, False),
    "shared": ("logistic", "full-rank", SHARED, False),
    "all data": ("logistic", "full-rank raw", ALL, False),
    "by leaf": ("logistic", "full-rank", OWN, True),
    "by leaf, shared": ("logistic", "mean-field", SHARED, True),
    "by leaf of blocks": ("waves in three", "blocks", OWN, True),
    "blocks": ("waves in three", "mixed blocks", OWN, False),
}


@pytest.mark.parametrize(("model", "family", "sampler", "by_leaf"), TEXTBOOK.values(), ids=TEXTBOOK)
def test_steps_agree_with_the_textbook(model, family, sampler, by_leaf, key):
    problem, params = catalogue.problem(model, family), FAMILIES[family].params
    variates = quell.paper.variates("S7") if family.startswith("full-rank") else FEW
    variates = [variate for variate in variates if variate.refuses(problem) is None]
    rule, base = quell.Rule(decay=0.1, v0=0.01, by_leaf=by_leaf), quell.default_base(problem)
    gradient = quell.Gradient(problem, variates, base=base, sampler=sampler, rule=rule)
    state, update = gradient.init(params), eqx.filter_jit(gradient.update_from_draw)
    dense = jax.jit(lambda draw, state: dense_samples(gradient, params, draw, state))
    sizes = problem.family.num_leaf_params if by_leaf else [problem.family.num_params]
    total, mass, units = 0.0, 0.0, sampler.num_units
    for step in range(3):
        draw = sampler.draw(jax.random.fold_in(key, step), problem.family, problem.model.num_data, jnp.float64)
        sets = rows_of(gradient, dense(draw, state), draw)
        joint = np.stack([np.einsum("knd,lnd->kl", rows, rows) / units for rows in sets])
        weights = np.zeros((len(sets), len(variates)))
        if step:
            count = units * sum(0.9**t for t in range(1, step + 1))
            for k, size in enumerate(sizes):
                # Some variates vanish on the full data; the prior keeps the matrix regular.
                average, ridge = total[k] / mass, size * 0.01 / count * np.eye(len(variates))
                weights[k] = -np.linalg.solve(ridge + average[1:, 1:], average[1:, 0])
        combined = [rows[0] + np.tensordot(w, rows[1:], axes=1) for w, rows in zip(weights, sets, strict=True)]
        loss_grad, state, info = update(draw, params, state)
        np.testing.assert_allclose(info.weights, weights if by_leaf else weights[0], **EXACT)
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(loss_grad)])
        np.testing.assert_allclose(flat, -np.concatenate([rows.mean(axis=0) for rows in combined]), **EXACT)
        norms = [sum(np.mean(np.sum(rows**2, axis=-1)) for rows in some) for some in ([r[0] for r in sets], combined)]
        np.testing.assert_allclose([info.base_sq_norm, info.combined_sq_norm], norms, **EXACT)
        total, mass = 0.9 * total + 0.1 * joint, 0.9 * mass + 0.1


def test_the_elbo_of_a_step_is_that_of_its_draw(key):
    problem, params = catalogue.problem("logistic", "full-rank"), FAMILIES["full-rank"].params
    gradient = quell.Gradient(problem, sampler=quell.Sampler(4, 2))
    draw = gradient.sampler.draw(key, problem.family, 5, jnp.float64)
    _, _, info = gradient.update_from_draw(draw, params, gradient.init(params))
    latents = params.loc + draw.noise @ problem.family.scale_tril(params).T
    values = []
    for z, index in zip(latents, draw.index, strict=True):
        batch = jax.tree.map(lambda x, i=index: x[i], problem.model.data)
        likelihood = problem.model.log_likelihood(z, batch).sum() * 5 / 2
        values.append(likelihood + problem.model.prior.log_prob(z) - problem.family.log_prob(params, z))
    np.testing.assert_allclose(info.elbo, np.mean(values), **EXACT)


def test_moments_are_taken_every_few_steps(key):
    """As often as asked for, and what is learned is what a rule that sees those steps alone would learn."""
    problem, params = catalogue.problem("logistic", "full-rank"), FAMILIES["full-rank"].params
    sparse, every = (quell.Gradient(problem, FEW, sampler=OWN, rule=quell.Rule(decay=0.1, every=k)) for k in (3, 1))
    updates = [eqx.filter_jit(gradient.update) for gradient in (sparse, every)]
    state, seen = sparse.init(params), every.init(params)
    for step in range(7):
        now = jax.random.fold_in(key, step)
        np.testing.assert_allclose(sparse.weights(state), every.weights(seen), **EXACT)
        grad, state, info = updates[0](now, params, state)
        other, after, truth = updates[1](now, params, seen)
        all_close(grad, other, EXACT)
        if step % 3 == 0:
            seen, base = after, truth.base_sq_norm
            np.testing.assert_allclose(info.combined_sq_norm, truth.combined_sq_norm, **EXACT)
        np.testing.assert_allclose(info.base_sq_norm, base, **EXACT)
    assert every.init(params).moments.held is None


def test_with_one_leaf_weights_by_leaf_are_the_same(key):
    problem, params = catalogue.problem("waves in two", "bernoulli"), FAMILIES["bernoulli"].params
    variate, found = quell.ControlVariate(quell.Score(), SF, CF), []
    for by_leaf in (False, True):
        rule, base = quell.Rule(by_leaf=by_leaf), quell.BaseGradient(SF, SF, CF)
        gradient = quell.Gradient(problem, [variate], base, quell.Sampler(4, 2), rule)
        update, state = eqx.filter_jit(gradient.update), gradient.init(params)
        for step in range(3):
            grad, state, info = update(jax.random.fold_in(key, step), params, state)
        found.append((grad.logits, info.weights.ravel(), info.combined_sq_norm))
    all_close(*found, EXACT)


# What is not finite


class _Poison(AbstractApproximation):
    """Puts a NaN into one way of looking at a term."""

    where: str

    @property
    def name(self):
        return f"poisoned-{self.where}"

    def refuses(self, problem, term):
        return None

    def init(self, problem):
        return None

    def apply(self, term, state):
        return _Poisoned(term, self.where)


class _Poisoned(AbstractTerm):
    term: AbstractTerm
    where: str

    @property
    def name(self):
        return "poisoned"

    def _spoil(self, where, value):
        return jax.tree.map(lambda x: x * jnp.nan, value) if where == self.where else value

    def values(self, evaluation, transport, *, full_data):
        return self._spoil("values", self.term.values(evaluation, transport, full_data=full_data))

    def grads(self, evaluation, transport, *, full_data):
        where = "symmetric" if transport == quell.SYMMETRIC else "grads"
        return self._spoil(where, self.term.grads(evaluation, transport, full_data=full_data))

    def closed_form(self, evaluation, *, full_data):
        return self._spoil("closed form", self.term.closed_form(evaluation, full_data=full_data))

    def refuses_closed_form(self, problem):
        return self.term.refuses_closed_form(problem)


@pytest.mark.parametrize(
    ("where", "left", "right", "rule"),
    [
        ("grads", RP, CF, quell.Rule()),
        ("symmetric", RP, RP2, quell.Rule()),
        ("values", SF, RP, quell.Rule(by_leaf=True)),
        ("closed form", RP, CF, quell.Rule(by_leaf=True, every=2)),
    ],
    ids=["grads", "symmetric", "values", "closed form"],
)
def test_a_nan_in_any_part_drops_only_its_own_variate(where, left, right, rule, key):
    """Of all leaves, and also at steps whose moments are not taken."""
    problem, params = catalogue.problem("logistic", "full-rank"), FAMILIES["full-rank"].params
    poisoned = quell.ControlVariate(quell.Prior(), left, right, approximation=_Poison(where))
    with_poison, without = (
        quell.Gradient(problem, variates, sampler=OWN, rule=rule) for variates in ((*FEW, poisoned), FEW)
    )
    updates = [eqx.filter_jit(gradient.update) for gradient in (with_poison, without)]
    states = [gradient.init(params) for gradient in (with_poison, without)]
    for step in range(3):
        now = jax.random.fold_in(key, step)
        (spoiled, one, info), (clean, two, truth) = (u(now, params, s) for u, s in zip(updates, states, strict=True))
        states = one, two
        assert info.dropped.tolist() == [False] * 3 + [True]
        all_close(spoiled, clean, EXACT)
        np.testing.assert_allclose(info.weights[..., :3], truth.weights, **EXACT)
        np.testing.assert_allclose(info.combined_sq_norm, truth.combined_sq_norm, **EXACT)
    assert bool(jnp.any(info.weights[..., :3] != 0))


# Results


@pytest.mark.slow
def test_results_name_their_leaves(key, tmp_path):
    rule = quell.Rule(by_leaf=True)
    result = quell.fit(MODELS["logistic"], quell.MeanField(2), variates=FEW[:2], rule=rule, steps=30, key=key)
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
