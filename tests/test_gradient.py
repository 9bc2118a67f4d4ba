# SPDX-License-Identifier: Apache-2.0
"""`Gradient.update` against a textbook computation with dense vectors in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import catalogue
import quell
from quell.approximations import AbstractApproximation
from quell.evaluation import Evaluation
from quell.terms import AbstractTerm
from tolerances import EXACT

PROBLEM = quell.Problem(catalogue.MODELS["logistic"], catalogue.FAMILIES["full-rank"])
PARAMS = catalogue.some_params(PROBLEM.family)
N = catalogue.NUM_DATA


def vectors(gradient, draw):
    """Base gradient and variates of the ELBO a datum, `[sample, replicate, parameter]`."""
    evaluation = Evaluation(PROBLEM, PARAMS, draw)
    dense = [evaluation.algebra.dense(s) for s in gradient.samples(evaluation, gradient.init(PARAMS))]
    return np.stack([np.concatenate([d.loc, d.scale.reshape(len(d.loc), -1)], axis=1) for d in dense]) / N


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [quell.Sampler(3, 2), quell.Sampler(3, 2, shared=True), quell.Sampler(3)])
def test_two_steps_agree_with_the_textbook(sampler, key):
    gradient = quell.Gradient(PROBLEM, quell.paper.variates("S7"), sampler=sampler, rule=quell.Rule(decay=0.1, v0=0.01))
    state = gradient.init(PARAMS)
    num_params, total, mass = PROBLEM.family.num_params, 0.0, 0.0
    units = 1 if sampler.shared else 3
    for step in range(3):
        draw = sampler.draw(jax.random.fold_in(key, step), PROBLEM.family, N, jnp.float64)
        each = vectors(gradient, draw)
        rows = each.mean(axis=1, keepdims=True) if sampler.shared else each
        joint = np.einsum("knd,lnd->kl", rows, rows) / units
        weights = np.zeros(7)
        if step:
            count = units * sum(0.9**t for t in range(1, step + 1))
            average = total / mass
            # c5 and c6 vanish on the full data; the prior keeps the matrix regular.
            ridge = num_params * 0.01 / count * np.eye(7)
            weights = -np.linalg.solve(ridge + average[1:, 1:], average[1:, 0])
        combined = rows[0] + np.tensordot(weights, rows[1:], axes=1)
        loss_grad, state, info = gradient.update_from_draw(draw, PARAMS, state)
        flat = np.concatenate([loss_grad.loc, loss_grad.scale.ravel()])
        np.testing.assert_allclose(info.weights, weights, **EXACT)
        np.testing.assert_allclose(flat, -combined.mean(axis=0), **EXACT)
        np.testing.assert_allclose(info.base_sq_norm, np.mean(np.sum(rows[0] ** 2, axis=1)), **EXACT)
        np.testing.assert_allclose(info.combined_sq_norm, np.mean(np.sum(combined**2, axis=1)), **EXACT)
        total, mass = 0.9 * total + 0.1 * joint, 0.9 * mass + 0.1


def test_elbo_of_a_step_is_that_of_its_draw(key):
    gradient = quell.Gradient(PROBLEM, sampler=quell.Sampler(4, 2))
    draw = gradient.sampler.draw(key, PROBLEM.family, N, jnp.float64)
    _, _, info = gradient.update_from_draw(draw, PARAMS, gradient.init(PARAMS))
    latents = PARAMS.loc + draw.noise @ PROBLEM.family.scale_tril(PARAMS).T
    values = []
    for z, index in zip(latents, draw.index, strict=True):
        batch = jax.tree.map(lambda x, i=index: x[i], PROBLEM.model.data)
        likelihood = PROBLEM.model.log_likelihood(z, batch).sum() * N / 2
        values.append(likelihood + PROBLEM.model.prior.log_prob(z) - PROBLEM.family.log_prob(PARAMS, z))
    np.testing.assert_allclose(info.elbo, np.mean(values), **EXACT)


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
        where = "symmetric" if transport == "symmetric" else "grads"
        return self._spoil(where, self.term.grads(evaluation, transport, full_data=full_data))

    def expand(self, evaluation, anchor, batch):
        return self.term.expand(evaluation, anchor, batch)

    def closed_form(self, evaluation, *, full_data):
        return self._spoil("closed form", self.term.closed_form(evaluation, full_data=full_data))

    def refuses_closed_form(self, problem):
        return self.term.refuses_closed_form(problem)


RP, RP2, SF, CF = (
    quell.Reparameterization(),
    quell.Reparameterization(quell.SYMMETRIC),
    quell.ScoreFunction(),
    quell.ClosedForm(),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "left", "right"),
    [("grads", RP, CF), ("symmetric", RP, RP2), ("values", SF, RP), ("closed form", RP, CF)],
)
def test_a_nan_in_any_part_drops_only_its_own_variate(where, left, right, key):
    poisoned = quell.ControlVariate(quell.Prior(), left, right, approximation=_Poison(where))
    sampler = quell.Sampler(3, 2)
    good = quell.paper.variates("S7")
    with_poison = quell.Gradient(PROBLEM, (*good, poisoned), sampler=sampler)
    without = quell.Gradient(PROBLEM, good, sampler=sampler)
    states = with_poison.init(PARAMS), without.init(PARAMS)
    for step in range(2):
        step_key = jax.random.fold_in(key, step)
        spoiled, states_0, info = with_poison.update(step_key, PARAMS, states[0])
        clean, states_1, truth = without.update(step_key, PARAMS, states[1])
        states = states_0, states_1
        assert info.dropped.tolist() == [False] * 7 + [True]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **EXACT), spoiled, clean)
        np.testing.assert_allclose(info.weights[:7], truth.weights, **EXACT)
        np.testing.assert_allclose(info.combined_sq_norm, truth.combined_sq_norm, **EXACT)
