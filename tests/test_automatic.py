# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: the rule, and what a fit makes of it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
import tolerances
from quell.fit.method import EXACT as EXACT_BASE
from quell.fit.plan import FitPlan
from quell.fit.step import take_step
from quell.models.linear import LinearData


def linear(num=30, dim=3):
    rng = np.random.default_rng(0)
    return quell.logistic_regression(rng.normal(size=(num, dim)), rng.integers(0, 2, size=num))


def general(*, kinked=False):
    """A model without any closed form of its data term, and perhaps with a gradient that jumps."""
    rng = np.random.default_rng(1)
    data = {"x": jnp.asarray(rng.normal(size=(40, 2))), "y": jnp.asarray(rng.normal(size=40))}

    def log_likelihood(z, batch):
        residual = batch["y"] - jnp.tanh(batch["x"] @ z)
        return -jnp.abs(residual) if kinked else -jnp.log1p(residual**2)

    return quell.Model(log_likelihood, quell.NormalPrior(), data, jnp.zeros(2))


# The rule


def plan_of(model, family, key=None, **options):
    return FitPlan.of(quell.FitOptions(**options), model, family, jax.random.key(0) if key is None else key)


@pytest.mark.slow
@pytest.mark.usefixtures("on_draws")
def test_the_choice_depends_on_neither_clock_nor_steps(monkeypatch):
    """A fit with a clock that runs wild takes the same steps, to rounding: its program may be compiled by then."""
    model, family, key = general(kinked=True), quell.FullRank(2), jax.random.key(0)
    once = quell.fit(model, family, steps=150, key=key)
    seconds = iter(1e3 * np.arange(100_000) ** 1.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))
    again = quell.fit(model, family, steps=150, key=key)
    assert again.choice == once.choice == plan_of(model, family, steps=10_000).choice
    assert again.history.num_steps == once.history.num_steps
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, **tolerances.RUNS), again.params, once.params
    )


@pytest.mark.parametrize(
    ("family", "names"),
    [
        (quell.FullRank(2), ("variational: rp - cf", "prior: rp - cf", "anchored(data): rp - cf[all]")),
        (quell.Bernoulli(2), ("score: sf - cf", "leave-one-out(elbo): sf - cf", "variational: sf - cf")),
    ],
)
def test_sampled_gradients_come_with_the_default_variates(family, names):
    made = plan_of(general(kinked=True), family, rule=quell.Rule())
    assert made.choice.base == "sampled"
    assert made.choice.variates == made.algorithm.gradient.names
    assert set(names) <= set(made.choice.variates)
    assert all(name in made.choice.reason for name in names)


@pytest.mark.parametrize("draws", [True, False])
def test_a_kink_far_from_the_start_is_no_danger(draws, request):
    """Hessians never see the kinks of a Laplace density, and would make the posterior as wide as the prior."""
    if draws:
        request.getfixturevalue("on_draws")
    rng = np.random.default_rng(0)
    data = jnp.asarray(30.0 + rng.laplace(size=100))
    model = quell.Model(lambda z, y: -jnp.abs(y - z[0]), quell.NormalPrior(0.0, 20.0), data, jnp.zeros(1))
    result = quell.fit(model, quell.FullRank(1), key=jax.random.key(0))
    assert result.choice.base == ("common draws" if draws else "exact")
    assert result.status is quell.Status.CONVERGED
    np.testing.assert_allclose(result.params.loc[0], jnp.median(data), atol=0.2)
    assert 0.07 < float(jnp.exp(result.params.scale[0, 0])) < 0.2


@pytest.mark.usefixtures("on_draws")
def test_a_linear_predictor_with_a_kink_is_not_called_exact():
    features, targets = jnp.ones((20, 1)), jnp.linspace(-1, 1, 20)
    for density, base in (
        (lambda t, y: -jnp.abs(y - t), "common draws"),
        (lambda t, y: -jnp.log1p((y - t) ** 2), "exact"),
    ):
        model = quell.LinearPredictor(LinearData(features, targets), quell.NormalPrior(), density)
        assert plan_of(model, quell.FullRank(1)).choice.base == base


def test_adam_sees_all_of_few_data_with_the_cheapest_variates():
    result = quell.fit(general(), quell.FullRank(2), optimizer=optax.adam(0.01), steps=20, key=jax.random.key(0))
    assert result.gradient.sampler == quell.Sampler(4)
    assert result.choice.variates == ("variational: rp - cf",)


@pytest.mark.usefixtures("on_draws")
def test_a_smooth_density_takes_newton_steps_on_common_draws():
    model = general()
    made = plan_of(model, quell.FullRank(2))
    assert made.choice.base == "common draws"
    given = ({"sampler": quell.Sampler(3)}, {"base": quell.BaseGradient()}, {"rule": quell.Rule()})
    for options in (*given, {"optimizer": quell.natural_gradient(quell.Problem(model, quell.FullRank(2)))}):
        assert plan_of(model, quell.FullRank(2), **options).choice.base == "sampled"
    assert plan_of(model, quell.Bernoulli(2)).choice.base == "sampled"


@pytest.mark.usefixtures("on_draws")
def test_a_checkpoint_of_newton_steps_is_not_resumed_by_a_fit_without(tmp_path):
    path = tmp_path / "fit"
    quell.fit(general(), quell.FullRank(2), steps=4, checkpoint=quell.Checkpoint(path), key=jax.random.key(0))
    again = quell.Checkpoint(path, resume=True)
    with pytest.raises(quell.CheckpointError, match=r"differs in choice \(common draws there, sampled here\)"):
        quell.fit(
            general(), quell.FullRank(2), steps=20, sampler=quell.Sampler(2), checkpoint=again, key=jax.random.key(0)
        )


# Fits


@pytest.mark.parametrize(
    "family", [quell.MeanField(3), quell.FullRank(3), pytest.param(quell.LowRank(3, 1), marks=pytest.mark.slow)]
)
def test_a_linear_predictor_is_fitted_exactly(family):
    model = linear()
    result = quell.fit(model, family, key=jax.random.key(0))
    assert result.choice.exact
    assert result.gradient.base == EXACT_BASE
    assert result.status is quell.Status.CONVERGED
    assert result.history.num_steps < 200
    slope = jax.grad(lambda w: quell.exact_elbo(result.problem, w))(result.params)
    geometry = family.geometry
    gain = 0.5 * geometry.sq_norm(result.params, geometry.direction(result.params, slope))
    assert gain < 1e-3
    assert "exact" in repr(result)


def test_what_is_given_is_not_chosen(unchecked):
    model = linear()
    sampler = quell.Sampler(2, 5)
    result = quell.fit(model, quell.FullRank(3), sampler=sampler, steps=20, key=jax.random.key(0))
    assert not result.choice.exact
    assert result.gradient.sampler == sampler
    given = quell.fit(model, quell.FullRank(3), variates=(), steps=5, key=jax.random.key(0))
    assert given.choice is None
    with pytest.raises(TypeError, match=r"`variates`.*'automatic'"):
        quell.fit(model, quell.FullRank(3), variates="automatic", key=jax.random.key(0))


@pytest.mark.slow
def test_the_first_steps_learn_weights_only():
    model = general(kinked=True)
    plan = plan_of(model, quell.FullRank(2), steps=200, sampler=quell.Sampler(10))
    state = plan.start
    for _ in range(int(plan.policy.warm_up)):
        state, _ = take_step(plan.algorithm, plan.policy, plan.key, state)
    assert int(plan.policy.warm_up) == 10
    np.testing.assert_array_equal(state.params.loc, plan.start.params.loc)
    assert jnp.any(plan.algorithm.gradient.weights(state.algorithm.gradient) != 0)
    state, _ = take_step(plan.algorithm, plan.policy, plan.key, state)
    assert jnp.any(state.params.loc != plan.start.params.loc)


def test_an_optimiser_of_the_users_own_has_its_metric():
    model = general()
    for given, metric in ((optax.adam(0.01), "euclidean"), (None, "natural")):
        plan = plan_of(model, quell.FullRank(2), optimizer=given)
        assert plan.algorithm.gradient.rule.metric == metric
    low_rank = plan_of(model, quell.LowRank(2, rank=1))
    assert low_rank.algorithm.gradient.rule.metric == "euclidean"


@pytest.mark.slow
def test_several_fits_share_one_choice():
    results = quell.fit_many(linear(), quell.FullRank(3), num_fits=2, key=jax.random.key(0))
    assert [result.choice.exact for result in results] == [True, True]
    assert {result.status for result in results} == {quell.Status.CONVERGED}


def test_a_choice_says_why():
    assert str(quell.Choice("sampled", ("c1",), "Because.")) == "Because."
