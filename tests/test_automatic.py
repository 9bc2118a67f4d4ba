# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: the rule, the noise check, and what a fit makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from exact import exact_draw, expectation, gauss_hermite
from quell.evaluation import Evaluation
from quell.fit import method
from quell.fit.defaults import ANNEALED_RATE, ANNEALED_SCALE_RATE, NOISE_CHECK_STEP
from quell.fit.method import EXACT as EXACT_BASE
from quell.fit.method import second_order_gradient
from quell.fit.natural_gradient import natural_sq_norm
from quell.fit.plan import FitPlan
from quell.fit.step import take_step
from quell.models.linear import LinearData
from tolerances import EXACT, EXPECTATION


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


def test_the_choice_depends_on_neither_clock_nor_steps(monkeypatch):
    """A fit with a clock that runs wild takes the same steps."""
    model, family, key = general(kinked=True), quell.FullRank(2), jax.random.key(0)
    once = quell.fit(model, family, steps=150, key=key)
    seconds = iter(1e3 * np.arange(100_000) ** 1.5)
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds))
    again = quell.fit(model, family, steps=150, key=key)
    assert again.choice == once.choice == plan_of(model, family, steps=10_000).choice
    jax.tree.map(np.testing.assert_array_equal, again.params, once.params)
    np.testing.assert_array_equal(again.history.weights, once.history.weights)


@pytest.mark.parametrize(
    ("family", "base", "names"),
    [
        (quell.FullRank(2), "sampled", ("variational: rp - cf", "prior: rp - cf", "anchored(data): rp - cf[all]")),
        (quell.Bernoulli(2), "sampled", ("score: sf - cf", "leave-one-out(elbo): sf - cf", "variational: sf - cf")),
    ],
)
def test_sampled_gradients_come_with_the_default_variates(family, base, names):
    made = plan_of(general(kinked=True), family)
    assert made.choice.base == made.choice.first == base
    assert made.choice.variates == made.algorithm.gradient.names
    assert set(names) <= set(made.choice.variates)
    assert all(name in made.choice.reason for name in names)


def test_a_kink_far_from_the_start_is_no_danger():
    """Hessians never see the kinks of a Laplace density, and would make the posterior as wide as the prior."""
    rng = np.random.default_rng(0)
    data = jnp.asarray(30.0 + rng.laplace(size=100))
    model = quell.Model(lambda z, y: -jnp.abs(y - z[0]), quell.NormalPrior(0.0, 20.0), data, jnp.zeros(1))
    result = quell.fit(model, quell.FullRank(1), key=jax.random.key(0))
    assert result.choice.base == "sampled"
    np.testing.assert_allclose(result.params.loc[0], jnp.median(data), atol=0.2)
    assert 0.07 < float(jnp.exp(result.params.scale[0, 0])) < 0.2


def test_a_linear_predictor_with_a_kink_is_not_called_exact():
    features, targets = jnp.ones((20, 1)), jnp.linspace(-1, 1, 20)
    for density, base in ((lambda t, y: -jnp.abs(y - t), "sampled"), (lambda t, y: -jnp.log1p((y - t) ** 2), "exact")):
        model = quell.LinearPredictor(LinearData(features, targets), quell.NormalPrior(), density)
        assert plan_of(model, quell.FullRank(1)).choice.base == base


@pytest.mark.release
def test_hessians_that_turn_out_to_be_noisy_are_given_up(monkeypatch):
    def run(steps=60):
        return quell.fit(general(), quell.FullRank(2), steps=steps, key=jax.random.key(0))

    quiet = run()
    assert quiet.choice.base == quiet.choice.first == "second order"
    monkeypatch.setattr(method, "MOST_NOISE", 0.0)
    noisy = run()
    assert noisy.choice.base == "sampled"
    assert noisy.choice.first == "second order"
    assert "noisy" in noisy.choice.reason
    assert noisy.choice.anneals
    assert not quiet.choice.anneals
    assert noisy.choice.variates == noisy.gradient.names == ("variational: rp - cf",)
    assert not noisy.history.weights[: NOISE_CHECK_STEP + 1].any(), "no weights before there were variates"
    assert noisy.history.weights[NOISE_CHECK_STEP + 2 :].any()
    begun, moved = (run(steps).params.loc for steps in (NOISE_CHECK_STEP, NOISE_CHECK_STEP + 1))
    assert (moved != begun).all(), "few steps cannot be spared for learning"


@pytest.mark.slow
def test_the_check_measures_the_noise_alone():
    """Against the exact covariance, and far from the optimum, where the gradient itself is long."""
    problem = quell.Problem(general(), quell.FullRank(2))
    gradient = second_order_gradient(problem, quell.Rule())
    params = quell.LocationScale(jnp.array([2.0, -2.0]), jnp.diag(jnp.array([-0.5, -0.5])))
    draw, mass = exact_draw(gauss_hermite(20).power(2), problem.model.num_data, None)

    def of_noise(noise):
        return gradient.update_from_draw(quell.Draw(noise[None], None), params, gradient.init(params))[0]

    grads = jax.vmap(of_noise)(draw.noise)
    steps = jax.tree.map(lambda leaf: leaf - jnp.tensordot(mass, leaf, axes=1), grads)
    noise = 0.5 * jax.vmap(lambda step: natural_sq_norm(problem, params, step))(steps)
    found = [float(method.median_noise(gradient, params, jax.random.key(seed))) for seed in range(20)]
    assert 0.3 < np.mean(found) / float(mass @ noise) < 1.5, "a median of squares is below their mean"
    whole = 0.5 * jax.vmap(lambda grad: natural_sq_norm(problem, params, grad))(grads)
    assert float(mass @ whole) > 5 * float(mass @ noise)


@pytest.mark.parametrize(
    ("share", "metric", "is_measured"),
    [
        ([0.99, 0.99, 0.99], "natural", False),
        ([0.99, 1.01, 0.99], "natural", True),
        ([np.nan, np.nan, np.nan], "natural", True),
        ([0.99, 0.99, 0.99], "euclidean", True),
    ],
)
def test_where_the_last_steps_gained_little_no_noise_is_measured(monkeypatch, share, metric, is_measured):
    """Far from the optimum of a heavy-tailed density the noise is large; only if the last steps gained little, it is
    not measured."""
    model, family = general(), quell.FullRank(2)
    monkeypatch.setattr(method, "median_noise", lambda *_: jnp.asarray(100.0))
    made = plan_of(model, family, rule=quell.Rule(metric=metric))
    last = [method.MOST_NOISE * part for part in share]
    changed = made.after_noise_check(made.start.params, last)
    assert (changed is not made) == is_measured
    if is_measured:
        assert changed.choice.base == "sampled"
        assert changed.choice.anneals


@pytest.mark.release
def test_a_fit_that_was_interrupted_before_the_noise_check_does_it_when_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(method, "MOST_NOISE", 0.0)

    def run(name, steps, callback=None, **options):
        checkpoint, key = quell.Checkpoint(tmp_path / name, every_steps=8, **options), jax.random.key(0)
        return quell.fit(general(), quell.FullRank(2), steps=steps, checkpoint=checkpoint, callback=callback, key=key)

    whole = run("whole", 50)
    assert run("parts", NOISE_CHECK_STEP).choice.base == "second order"
    resumed = run("parts", 50, resume=True)
    assert resumed.choice.base == whole.choice.base == "sampled"
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    stop = lambda progress: progress.step >= 32  # noqa: E731
    assert run("short", 40, callback=stop).history.num_steps == 32, "after the check, where a longer fit would warm up"
    jax.tree.map(np.testing.assert_array_equal, run("short", 40, resume=True).params, run("whole short", 40).params)
    with pytest.raises(quell.CheckpointError, match="50 steps"):
        run("whole", 60, resume=True)


@pytest.mark.release
@pytest.mark.parametrize(("steps", "warm_up"), [(60, 34), (45, 34), (44, 0), (30, 0)])
def test_after_noisy_hessians_the_rate_falls_to_zero_over_the_steps_that_move(monkeypatch, steps, warm_up):
    monkeypatch.setattr(method, "MOST_NOISE", 0.0)
    made = plan_of(general(), quell.FullRank(2), steps=steps)
    state = made.start.algorithm
    changed = made.after_noise_check(state.params, [0.0] * 3)
    assert int(changed.policy.warm_up) == warm_up
    end = NOISE_CHECK_STEP + steps - max(warm_up, NOISE_CHECK_STEP)
    schedule = optax.cosine_decay_schedule(ANNEALED_RATE, end)
    expected = quell.natural_gradient(changed.algorithm.gradient.problem, schedule, scale_rate=ANNEALED_SCALE_RATE)
    for step in (0, end // 2, end):
        now = state.optimizer._replace(step=jnp.asarray(step, jnp.int32))
        updates = [one.update(state.params, now, state.params) for one in (changed.algorithm.optimizer, expected)]
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **EXACT), *updates)
    np.testing.assert_allclose(updates[0][1].rate, 0.0, atol=1e-12)


def test_adam_sees_all_of_few_data_with_the_cheapest_variates():
    result = quell.fit(general(), quell.FullRank(2), optimizer=optax.adam(0.01), steps=20, key=jax.random.key(0))
    assert result.gradient.sampler == quell.Sampler(4)
    assert result.choice.variates == ("variational: rp - cf",)


def test_a_checkpoint_of_hessians_is_not_resumed_by_a_fit_without(tmp_path):
    path = tmp_path / "fit"
    quell.fit(general(), quell.FullRank(2), steps=8, checkpoint=quell.Checkpoint(path), key=jax.random.key(0))
    again = quell.Checkpoint(path, resume=True)
    with pytest.raises(quell.CheckpointError, match=r"differs in choice \(second order there, sampled here\)"):
        quell.fit(
            general(), quell.FullRank(2), steps=20, sampler=quell.Sampler(2), checkpoint=again, key=jax.random.key(0)
        )


def test_the_gradient_of_second_order_is_one_of_the_elbo(unchecked):
    """Its mean over mirrored nodes is that of the sampled gradient, and the fit uses it."""
    problem = quell.Problem(general(), quell.FullRank(2))
    result = quell.fit(problem.model, problem.family, steps=60, key=jax.random.key(0))
    assert result.choice.base == "second order"
    assert result.gradient.sampler.num_replicates == 1
    assert isinstance(result.gradient.base.data, quell.BonnetPrice)
    assert isinstance(result.gradient.base.prior, quell.ClosedForm), "the prior is a normal"
    draw, mass = exact_draw(gauss_hermite(20).power(2), problem.model.num_data, None)
    evaluation = Evaluation(problem, problem.family.init(dtype=jnp.float64), draw)
    means = [
        expectation(gradient.base.sample(evaluation), evaluation, mass)
        for gradient in (result.gradient, quell.Gradient(problem))
    ]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **EXPECTATION), *means)


@pytest.mark.parametrize(
    "given", [{"sampler": quell.Sampler(3)}, {"base": quell.BaseGradient.of(quell.Reparameterization)}]
)
def test_no_hessians_where_sampler_or_base_were_given(given):
    problem = quell.Problem(general(), quell.FullRank(2))
    assert plan_of(problem.model, problem.family, **given).choice.base == "sampled"


def test_no_hessians_of_many_coordinates_or_of_a_family_that_is_not_gaussian():
    rule, likelihood = quell.Rule(), lambda z, y: -jnp.log1p((y - jnp.sum(z)) ** 2)
    for dim, is_tried in ((100, True), (101, False)):
        model = quell.Model(likelihood, quell.NormalPrior(), jnp.zeros(3), jnp.zeros(dim))
        assert (second_order_gradient(quell.Problem(model, quell.MeanField(dim)), rule) is not None) == is_tried
    assert second_order_gradient(quell.Problem(general(), quell.Bernoulli(2)), rule) is None


# Fits


def test_a_step_that_is_not_finite_is_no_sign_of_convergence():
    rng = np.random.default_rng(0)
    model = quell.poisson_regression(np.exp(rng.normal(size=(20, 2))), rng.poisson(3.0, size=20))
    start = quell.LocationScale(jnp.array([400.0, 400.0]), jnp.diag(jnp.zeros(2)))
    with pytest.warns(RuntimeWarning, match="stopped"):
        result = quell.fit(model, quell.FullRank(2), params=start, max_skipped=7, key=jax.random.key(0))
    assert result.choice.exact
    assert result.status is quell.Status.DIVERGED


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
    plan = plan_of(model, quell.FullRank(2), steps=200)
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


def test_several_fits_share_one_choice():
    results = quell.fit_many(linear(), quell.FullRank(3), num_fits=2, key=jax.random.key(0))
    assert [result.choice.exact for result in results] == [True, True]
    assert {result.status for result in results} == {quell.Status.CONVERGED}


def test_a_choice_says_why():
    choice = quell.Choice("sampled", ("c1",), "Because.", anneals=True)
    assert str(choice) == "Because."
    assert choice.first == "second order", "only such a fit anneals"
    assert quell.Choice("exact", (), "").first == "exact"
