# SPDX-License-Identifier: Apache-2.0
"""The automatic choice: selection against brute force, trial runs against exact values, and what a fit makes of it."""

import contextlib
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from exact import exact_draw, expectation
from quell.combine.select import Costs, options, subset_sq_norm
from quell.evaluation import Evaluation
from quell.fit import automatic, driver, optimizer
from quell.fit.automatic import EXACT as EXACT_BASE
from quell.fit.automatic import SETTLED, Tuner, second_order_gradient
from quell.fit.loop import take_step
from quell.fit.natural_gradient import geometry_of
from quell.fit.natural_length import natural_sq_norm
from quell.fit.plan import FitOptions
from quell.fit.scout import Scout
from quell.gradient import candidate_variates
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


# Selection


def moments(num, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(num + 1, 50))
    vectors[0] += vectors[1:].sum(axis=0)
    return vectors @ vectors.T / 50


def test_the_noise_of_a_subset_is_that_of_least_squares():
    joint = moments(4)
    for size in range(5):
        for members in itertools.combinations(range(4), size):
            rows = 1 + np.array(members, int)
            gram, cross = joint[np.ix_(rows, rows)], joint[rows, 0]
            left = joint[0, 0] - cross @ np.linalg.solve(gram, cross) if size else joint[0, 0]
            np.testing.assert_allclose(subset_sq_norm(joint, members), left, rtol=1e-5)


def test_the_best_option_is_the_best_of_all():
    joint, costs = moments(3), Costs(1.0, (0.1, 0.5, 3.0), 0.5)
    found = options(joint, 0.2, costs, floor=0.3, samples=(1, 2))
    assert len(found) == 16
    efforts = {}
    for size in range(4):
        for members in itertools.combinations(range(3), size):
            noise = subset_sq_norm(joint, members) - 0.2
            seconds = 1.0 + sum((0.1, 0.5, 3.0)[k] for k in members)
            efforts[members, 1] = seconds * (noise + 0.3)
            efforts[members, 2] = seconds * 1.5 * (noise / 2 + 0.3)
    best = min(efforts, key=efforts.get)
    assert (found[0].members, found[0].samples) == best
    np.testing.assert_allclose(found[0].effort, efforts[best], **EXACT)
    assert [one.effort for one in found] == sorted(one.effort for one in found)
    assert any(not one.members and one.samples == 1 for one in found)


def test_a_dear_variate_is_left_out_and_a_free_one_taken():
    joint = moments(2)
    free = options(joint, 0.0, Costs(1.0, (0.0, 1e3), 1.0), floor=0.0)
    assert free[0].members == (0,)
    assert options(joint, 0.0, Costs(1.0, (1e3, 1e3), 1.0), floor=0.0)[0].members == ()


def test_duplicates_are_not_weighed_against_each_other():
    joint = moments(2)
    twice = joint[np.ix_([0, 1, 2, 2], [0, 1, 2, 2])]
    np.testing.assert_allclose(subset_sq_norm(twice, (0, 1, 2)), subset_sq_norm(joint, (0, 1)), rtol=1e-4)


def test_many_variates_are_added_one_by_one():
    joint = moments(12)
    found = options(joint, 0.0, Costs(1.0, (0.0,) * 12, 1.0), floor=0.0)
    assert len(found) == 13
    assert len(found[0].members) == 12


# The mask


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(quell.Rule(), marks=pytest.mark.release),
        quell.Rule(metric="natural"),
        pytest.param(quell.Rule(by_leaf=True, every=2), marks=pytest.mark.slow),
    ],
)
def test_a_masked_gradient_is_that_of_the_variates_in_use(rule):
    model = linear()
    problem, sampler = quell.Problem(model, quell.FullRank(3)), quell.Sampler(2, 5)
    variates = candidate_variates(problem, sampler)
    masked = quell.Gradient(problem, variates, sampler=sampler, rule=rule, active=(False, True, True, False))
    plain = quell.Gradient(problem, variates[1:3], sampler=sampler, rule=rule)
    params = problem.family.init()
    one, two = masked.init(params), plain.init(params)
    for key in jax.random.split(jax.random.key(0), 3):
        grad, one, info = masked.update(key, params, one)
        same, two, plain_info = plain.update(key, params, two)
    for left, right in zip(grad, same, strict=True):
        np.testing.assert_allclose(left, right, **EXACT)
    np.testing.assert_allclose(info.weights[..., 1:3], plain_info.weights, **EXACT)
    assert not info.weights[..., (0, 3)].any()
    assert not info.dropped.any()


def test_a_gradient_whose_mask_is_empty_is_the_base_gradient():
    problem, sampler = quell.Problem(linear(), quell.FullRank(3)), quell.Sampler(2, 5)
    variates = candidate_variates(problem, sampler)
    masked = quell.Gradient(problem, variates, sampler=sampler, active=(False,) * len(variates))
    plain, params = quell.Gradient(problem, sampler=sampler), problem.family.init()
    one, two = masked.init(params), plain.init(params)
    for key in jax.random.split(jax.random.key(0), 2):
        grad, one, info = masked.update(key, params, one)
        same, two, plain_info = plain.update(key, params, two)
    jax.tree.map(np.testing.assert_array_equal, grad, same)
    np.testing.assert_allclose(info.combined_sq_norm, plain_info.base_sq_norm, **EXACT)
    assert info.weights.shape == (len(variates),)
    assert not info.weights.any()


def test_a_mask_of_another_length_is_refused():
    problem = quell.Problem(linear(), quell.FullRank(3))
    with pytest.raises(ValueError, match="One for each"):
        quell.Gradient(problem, quell.paper.variates("c2"), active=(True, False))


# Trial runs


@pytest.mark.parametrize("metric", [pytest.param("euclidean", marks=pytest.mark.release), "natural"])
def test_a_trial_run_finds_the_gradient_itself(metric):
    problem, sampler = quell.Problem(linear(), quell.FullRank(3, init_scale=1.0)), quell.Sampler(2)
    rule = quell.Rule(metric=metric, v0=0.0)
    gradient = quell.Gradient(problem, candidate_variates(problem, sampler), sampler=sampler, rule=rule)
    params = problem.family.init()
    seen = Scout(gradient, jax.random.key(0)).look(params, gradient.init(params))
    exact = jax.grad(lambda w: quell.exact_elbo(problem, w))(params)
    if metric == "natural":
        geometry = geometry_of(problem.family)
        expected = geometry.sq_norm(params, geometry.direction(params, exact))
    else:
        expected = sum(jnp.sum(leaf**2) for leaf in exact) / 30**2
    assert seen.joint[0, 0] > 3.0 * expected  # of which the trial has to see the noise off
    np.testing.assert_allclose(seen.mean_sq, expected, rtol=2e-2)
    # With closed forms for every term nothing but the gradient itself is left.
    members = tuple(range(len(gradient.variates)))
    np.testing.assert_allclose(subset_sq_norm(seen.joint, members), expected, rtol=5e-2)


def test_no_two_trial_runs_have_the_same_draws():
    problem, sampler = quell.Problem(general(), quell.FullRank(2)), quell.Sampler(2)
    gradient = quell.Gradient(problem, (), sampler=sampler)
    params, scout = problem.family.init(), Scout(gradient, jax.random.key(0))
    one, two = (scout.look(params, gradient.init(params)).joint[0, 0] for _ in range(2))
    assert one != two


@pytest.mark.slow
def test_costs_are_measured_for_every_variate():
    problem, sampler = quell.Problem(general(), quell.FullRank(2)), quell.Sampler(2)
    gradient = quell.Gradient(problem, candidate_variates(problem, sampler), sampler=sampler)
    params = problem.family.init()
    costs = Scout(gradient, jax.random.key(0)).costs(params, gradient.init(params))
    assert costs.base > 0
    assert len(costs.extra) == len(gradient.variates)
    assert min(*costs.extra, costs.more) >= 0


def make_tuner(problem, **given):
    rule, options = quell.Rule(metric="natural"), {"sampler": None, "base": None} | given
    return Tuner(problem, **options, rule=rule, default_sampler=quell.Sampler(4), natural=True, key=jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("kinked", [False, True])
def test_a_later_choice_is_never_worse_than_the_base_gradient(kinked):
    problem = quell.Problem(general(kinked=kinked), quell.FullRank(2))
    tuner, params = make_tuner(problem), problem.family.init()
    first = tuner.first()
    assert first.choice.base == first.choice.first == ("sampled" if kinked else "second order")
    assert any(first.choice.active) == kinked
    state = first.gradient.init(params)
    again = tuner.again(params, state, first.choice)
    assert jax.tree.structure(again.state) == jax.tree.structure(state)
    what = {trial.what: trial.effort for trial in again.choice.trials}
    assert min(what.values()) <= what["base"] == 1.0
    assert any(name.startswith("second order base") for name in what) == (not kinked)
    assert again.choice.seconds > 0
    assert again.choice.first == first.choice.first
    assert "time to converge" in str(again.choice)
    restored = tuner.restore(quell.Choice.from_spec(again.choice.spec()))
    assert restored.gradient == again.gradient
    assert restored.choice.trials == again.choice.trials


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
        assert make_tuner(quell.Problem(model, quell.FullRank(1))).first().choice.base == base


@pytest.mark.slow
@pytest.mark.parametrize("members", [(), (0,)])
def test_another_base_gradient_is_taken_kept_and_resumed(members, tmp_path, monkeypatch):
    """From second order to the sampled base, with or without a variate, in the middle of a fit."""
    model, family = general(), quell.FullRank(2)
    monkeypatch.setattr(driver, "WORTHWHILE", 0.0)
    monkeypatch.setattr(driver, "FIRST_RETUNED", 20)

    def forced(self, params, state, choice):
        active = tuple(k in members for k in range(len(choice.active)))
        new = quell.Choice("sampled", active, 1, "Forced.", first=choice.first)
        return self.restore(new)._replace(state=self.sampled.init(params))

    monkeypatch.setattr(Tuner, "again", forced)

    def run(name, steps, **options):
        checkpoint = quell.Checkpoint(tmp_path / name, every_steps=10, **options)
        return quell.fit(model, family, steps=steps, checkpoint=checkpoint, key=jax.random.key(0))

    whole = run("whole", 60)
    assert whole.choice.base == "sampled"
    assert whole.gradient.base == quell.BaseGradient.of(quell.Reparameterization)
    assert whole.gradient.active == whole.choice.active
    run("parts", 40)
    resumed = run("parts", 60, resume=True)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


def test_with_several_processes_nothing_depends_on_a_clock(monkeypatch):
    monkeypatch.setattr(driver, "WORTHWHILE", 0.0)
    monkeypatch.setattr(driver, "FIRST_RETUNED", 20)
    asked = []
    monkeypatch.setattr(Tuner, "again", lambda self, *where: asked.append(where))
    for several, times in ((False, 1), (True, 0)):
        monkeypatch.setattr(driver, "are_several", lambda several=several: several)
        monkeypatch.setattr(driver, "hint_if_killed", lambda advice, *, several: contextlib.nullcontext())
        asked.clear()
        quell.fit(general(), quell.FullRank(2), steps=30, sampler=quell.Sampler(2), key=jax.random.key(0))
        assert len(asked) == times


@pytest.mark.slow
def test_hessians_that_turn_out_to_be_noisy_are_given_up(monkeypatch):
    def run(steps=60):
        return quell.fit(general(), quell.FullRank(2), steps=steps, key=jax.random.key(0))

    quiet = run()
    assert quiet.choice.base == quiet.choice.first == "second order"
    monkeypatch.setattr(automatic, "SETTLED_NATS", 0.0)
    noisy = run()
    assert noisy.choice.base == "sampled"
    assert noisy.choice.first == "second order"
    assert "noisy" in noisy.choice.reason
    assert noisy.choice.anneals
    assert not quiet.choice.anneals
    used = [name for name, active in zip(noisy.gradient.names, noisy.choice.active, strict=True) if active]
    assert used == ["variational: rp - cf"]
    assert not noisy.history.weights[: SETTLED + 1].any(), "no weights before there were variates"
    assert noisy.history.weights[SETTLED + 2 :].any()
    begun, moved = (run(steps).params.loc for steps in (SETTLED, SETTLED + 1))
    assert (moved != begun).all(), "few steps cannot be spared for learning"


@pytest.mark.slow
def test_the_look_is_at_the_noise_alone():
    """Against the exact covariance, and far from the optimum, where the gradient itself is long."""
    problem = quell.Problem(general(), quell.FullRank(2))
    gradient = second_order_gradient(problem, quell.Rule())
    params = quell.LocationScale(jnp.array([2.0, -2.0]), jnp.diag(jnp.array([-0.5, -0.5])))
    draw, mass = exact_draw(problem, None)

    def of_noise(noise):
        return gradient.update_from_draw(quell.Draw(noise[None], None), params, gradient.init(params))[0]

    grads = jax.vmap(of_noise)(draw.noise)
    steps = jax.tree.map(lambda leaf: leaf - jnp.tensordot(mass, leaf, axes=1), grads)
    noise = 0.5 * jax.vmap(lambda step: natural_sq_norm(problem, params, step))(steps)
    found = [float(automatic._median_noise(gradient, params, jax.random.key(seed))) for seed in range(20)]
    assert 0.3 < np.mean(found) / float(mass @ noise) < 1.5, "a median of squares is below their mean"
    whole = 0.5 * jax.vmap(lambda grad: natural_sq_norm(problem, params, grad))(grads)
    assert float(mass @ whole) > 5 * float(mass @ noise)


def test_where_the_last_steps_gained_little_nothing_is_looked_at(monkeypatch):
    looks = []

    def look(*_):
        looks.append(1)
        return jnp.asarray(100.0)

    monkeypatch.setattr(automatic, "_median_noise", look)
    problem = quell.Problem(general(), quell.FullRank(2))
    params = problem.family.init()

    def settle(sq_norms, **rule):
        tuner = automatic.Tuner(
            problem,
            None,
            None,
            quell.Rule(**rule),
            default_sampler=quell.Sampler(10),
            natural=True,
            key=jax.random.key(0),
        )
        first = tuner.first()
        return tuner.settle(params, first.gradient.init(params), first.choice, sq_norms)

    little, much = 1.99 * 0.5 * automatic.SETTLED_NATS, 2.01 * 0.5 * automatic.SETTLED_NATS
    assert settle([little] * 3, metric="natural") is None
    assert not looks
    for sq_norms, metric in (
        ([little, much, little], "natural"),
        ([jnp.nan] * 3, "natural"),
        ([little] * 3, "euclidean"),
    ):
        tuned = settle(sq_norms, metric=metric)
        assert tuned.choice.base == "sampled"
        assert tuned.choice.anneals
        assert looks.pop()
        jax.tree.map(np.testing.assert_array_equal, tuned.state, tuned.gradient.init(params))


@pytest.mark.slow
def test_a_fit_that_was_interrupted_before_the_look_looks_when_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(automatic, "SETTLED_NATS", 0.0)

    def run(name, steps, callback=None, **options):
        checkpoint, key = quell.Checkpoint(tmp_path / name, every_steps=8, **options), jax.random.key(0)
        return quell.fit(general(), quell.FullRank(2), steps=steps, checkpoint=checkpoint, callback=callback, key=key)

    whole = run("whole", 50)
    assert run("parts", SETTLED).choice.base == "second order"
    resumed = run("parts", 50, resume=True)
    assert resumed.choice.base == whole.choice.base == "sampled"
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    stop = lambda progress: progress.step >= 32  # noqa: E731
    assert run("short", 40, callback=stop).history.num_steps == 32, "after the look, where a longer fit would wait"
    jax.tree.map(np.testing.assert_array_equal, run("short", 40, resume=True).params, run("whole short", 40).params)
    with pytest.raises(quell.CheckpointError, match="50 steps"):
        run("whole", 60, resume=True)


@pytest.mark.parametrize(("steps", "still"), [(60, 34), (45, 34), (44, 0), (30, 0)])
def test_after_noisy_hessians_the_rate_falls_to_zero_over_the_steps_that_move(monkeypatch, steps, still):
    monkeypatch.setattr(automatic, "SETTLED_NATS", 0.0)
    given = []

    def watched(problem, rate=None, **options):
        given.append(options)
        return quell.natural_gradient(problem, rate, **options)

    monkeypatch.setattr(optimizer, "natural_gradient", watched)
    made = FitOptions(steps=steps).plan(general(), quell.FullRank(2), jax.random.key(0))
    state = made.start.algorithm
    changed = made.changed(made.tuner.settle(state.params, state.gradient, made.choice, [0.0] * 3))
    assert int(changed.policy.still) == still
    assert given[-1] == {"scale_rate": optimizer.ANNEALED_SCALE_RATE}
    rates = []
    end = SETTLED + steps - max(still, SETTLED)
    for step in (0, end // 2, end):
        now = state.optimizer._replace(step=jnp.asarray(step, jnp.int32))
        rates.append(float(changed.algorithm.optimizer.update(state.params, now, state.params)[1].rate))
    middle = 0.5 * (1.0 + np.cos(np.pi * (end // 2) / end))
    np.testing.assert_allclose(rates, optimizer.ANNEALED_RATE * np.array([1.0, middle, 0.0]), **EXACT)


def test_adam_sees_all_of_few_data_with_the_cheapest_variates():
    result = quell.fit(general(), quell.FullRank(2), optimizer=optax.adam(0.01), steps=20, key=jax.random.key(0))
    assert result.gradient.sampler == quell.Sampler(4)
    used = [name for name, active in zip(result.gradient.names, result.choice.active, strict=True) if active]
    assert used == ["variational: rp - cf"]


def test_a_checkpoint_of_hessians_is_not_resumed_by_a_fit_without(tmp_path):
    path = tmp_path / "fit"
    quell.fit(general(), quell.FullRank(2), steps=8, checkpoint=quell.Checkpoint(path), key=jax.random.key(0))
    again = quell.Checkpoint(path, resume=True)
    with pytest.raises(quell.CheckpointError, match="second order gradient"):
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
    draw, mass = exact_draw(problem, None)
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
    assert make_tuner(problem, **given).first().choice.base == "sampled"


def test_no_hessians_of_many_coordinates_or_of_a_family_that_is_not_gaussian():
    rule, likelihood = quell.Rule(), lambda z, y: -jnp.log1p((y - jnp.sum(z)) ** 2)
    for dim, is_tried in ((100, True), (101, False)):
        model = quell.Model(likelihood, quell.NormalPrior(), jnp.zeros(3), jnp.zeros(dim))
        assert (second_order_gradient(quell.Problem(model, quell.MeanField(dim)), rule) is not None) == is_tried
    assert second_order_gradient(quell.Problem(general(), quell.Bernoulli(2)), rule) is None


@pytest.mark.release
def test_weights_by_leaf_can_be_tuned_too():
    problem, sampler = quell.Problem(linear(), quell.FullRank(3)), quell.Sampler(2, 5)
    params = problem.family.init()
    joints = []
    for by_leaf in (False, True):
        rule = quell.Rule(by_leaf=by_leaf)
        gradient = quell.Gradient(problem, candidate_variates(problem, sampler), sampler=sampler, rule=rule)
        joints.append(Scout(gradient, jax.random.key(0)).look(params, gradient.init(params)).joint)
    np.testing.assert_allclose(joints[1], joints[0], **EXACT)


def test_the_choice_of_the_moment_is_among_the_options():
    joint, costs = moments(12), Costs(1.0, (0.0,) * 12, 1.0)
    assert any(one.members == (3, 7) for one in options(joint, 0.0, costs, floor=0.0, also=((3, 7),)))


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
    geometry = geometry_of(family)
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
    with pytest.raises(TypeError, match="list of control variates"):
        quell.fit(model, quell.FullRank(3), variates="automatic", key=jax.random.key(0))


@pytest.mark.slow
def test_the_first_steps_learn_weights_only():
    model = general(kinked=True)
    plan = FitOptions(steps=200).plan(model, quell.FullRank(2), jax.random.key(0))
    state = plan.start
    for _ in range(int(plan.policy.still)):
        state, _ = take_step(plan.algorithm, plan.policy, plan.key, state)
    assert int(plan.policy.still) == 10
    np.testing.assert_array_equal(state.params.loc, plan.start.params.loc)
    assert jnp.any(plan.algorithm.gradient.weights(state.algorithm.gradient) != 0)
    state, _ = take_step(plan.algorithm, plan.policy, plan.key, state)
    assert jnp.any(state.params.loc != plan.start.params.loc)


def test_an_optimiser_of_the_users_own_has_its_metric():
    model = general()
    for given, metric in ((optax.adam(0.01), "euclidean"), (None, "natural")):
        plan = FitOptions(optimizer=given).plan(model, quell.FullRank(2), jax.random.key(0))
        assert plan.algorithm.gradient.rule.metric == metric
    low_rank = FitOptions().plan(model, quell.LowRank(2, rank=1), jax.random.key(0))
    assert low_rank.algorithm.gradient.rule.metric == "euclidean"


def test_several_fits_share_one_choice():
    results = quell.fit_many(linear(), quell.FullRank(3), num_fits=2, key=jax.random.key(0))
    assert [result.choice.exact for result in results] == [True, True]
    assert {result.status for result in results} == {quell.Status.CONVERGED}


def test_a_choice_says_why():
    choice = quell.Choice("sampled", (True,), 1, "Because.")
    assert str(choice) == "Because."
    assert quell.Choice.from_spec(choice.spec()) == choice
    assert dataclasses.replace(choice, seconds=1.0) != choice
