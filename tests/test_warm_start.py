# SPDX-License-Identifier: Apache-2.0
"""Warm starts on a random subset of many rows: they save passes, and fits end where they would have ended."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import quell
from quell.evaluation import exactly, expectation
from quell.fit import attempts, defaults, method, warm_start
from quell.fit.defaults import WARM_UP_STEPS, default_optimizer
from quell.fit.method import EXACT as EXACT_BASE
from quell.fit.plan import FitPlan
from quell.fit.step import take_step
from quell.fit.warm_start import KEY_NUMBER, run_warm_start, subset_algorithm, warm_start_rows
from tolerances import EXACT, RUNS

DIM = 3
NUM = 6400  # of which one in 32 is 200


def logistic(num=NUM):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(num, DIM))
    features = features[np.argsort(features[:, 0])]  # sorted rows: a block of them would be a poor part
    return quell.logistic_regression(features, rng.random(num) < 1 / (1 + np.exp(-features @ [1.0, -0.5, 0.3])))


def poisson(num=NUM):
    rng = np.random.default_rng(1)
    features = 0.5 * rng.normal(size=(num, DIM))
    return quell.poisson_regression(features, rng.poisson(np.exp(features @ [1.0, -0.5, 0.3])))


def isotropic(family, mean, scale):
    params = family.init()
    diagonal = jnp.full(DIM, np.log(scale))
    return quell.LocationScale(jnp.full(DIM, mean), diagonal if params.scale.ndim == 1 else jnp.diag(diagonal))


def exact_algorithm(model, family):
    problem = quell.Problem(model, family)
    gradient = quell.Gradient(problem, base=EXACT_BASE, rule=quell.Rule(metric="natural"))
    return quell.Algorithm(gradient, default_optimizer(problem, 100, exact=True))


def plan_of(model, family, key=None, **options):
    return FitPlan.of(quell.FitOptions(**options), model, family, jax.random.key(0) if key is None else key)


@pytest.fixture
def many(monkeypatch):
    """A few thousand rows count as many."""
    monkeypatch.setattr(warm_start, "LEAST_NUMBERS", 10_000)


def test_rows_are_as_many_as_a_problem_needs(many, monkeypatch):
    def num_rows(num_data, dim):
        model = quell.logistic_regression(np.ones((num_data, dim)), np.ones(num_data))
        return warm_start_rows(quell.Problem(model, quell.MeanField(dim)))

    assert num_rows(6400, 3) == 200
    assert num_rows(6400, 20) == 400
    assert num_rows(6400, 81) is None  # they would be more than a quarter
    monkeypatch.setattr(warm_start, "MOST_NUMBERS", 400)
    assert num_rows(6400, 3) == 100  # of four numbers each, with the target
    assert num_rows(6400, 5) is None  # they would be 66, of at least 100
    assert num_rows(2400, 3) is None  # below 10,000 numbers


@pytest.mark.parametrize("family", [quell.MeanField(DIM), quell.FullRank(DIM)])
@pytest.mark.release
def test_the_gradient_of_a_warm_start_is_exact_for_its_rows(many, family):
    model = logistic()
    algorithm = exact_algorithm(model, family)
    gradient = subset_algorithm(algorithm, warm_start_rows(algorithm.gradient.problem)).gradient
    key, params = jax.random.key(7), isotropic(family, 0.3, 0.5)
    rows = gradient.sampler.draw(key, family, NUM, float).index
    assert rows.shape == (200,)
    assert NUM - rows.max() < 400
    assert rows.min() < 400
    data = jax.tree.map(lambda leaf: leaf[rows], model.data)
    part = quell.LinearPredictor(data, model.prior, lambda t, y: NUM / 200 * model.log_density(t, y))
    expected = jax.grad(lambda w: quell.exact_elbo(quell.Problem(part, family), w))(params)
    found, _, _ = gradient.update(key, params, gradient.init(params))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(-NUM * one, other, **EXACT)


@pytest.mark.release
@pytest.mark.parametrize("make", [logistic, poisson])
@pytest.mark.parametrize("family", [quell.MeanField(DIM), quell.FullRank(DIM)])
def test_a_warm_start_saves_passes_and_ends_at_the_same_point(monkeypatch, make, family):
    model = make()
    natural = default_optimizer(quell.Problem(model, family), 50, exact=True)
    options = {"optimizer": natural, "steps": 50, "tolerance": 1e-13, "key": jax.random.key(0)}
    plain = quell.fit(model, family, **options)
    monkeypatch.setattr(warm_start, "LEAST_NUMBERS", 10_000)
    result = quell.fit(model, family, **options)
    assert plain.status is result.status is quell.Status.CONVERGED
    for one, other in zip(result.params, plain.params, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)
    assert "200 random data" in str(result.choice)
    assert "random data" not in str(plain.choice)
    gain = [0.5 * history.combined_sq_norm for history in (result.history, plain.history)]
    assert gain[0][0] < 10 * DIM * 32 < gain[1][0]
    assert gain[0][-1] < 1e-14 < gain[0][-2]  # convergence is checked after each step
    assert np.sum(gain[0] > 1e-3) <= np.sum(gain[1] > 1e-3) - 2


@pytest.mark.release
def test_parameters_that_are_good_already_stay(many):
    model, family = logistic(), quell.FullRank(DIM)
    best = quell.fit(model, family, key=jax.random.key(0)).params
    algorithm = exact_algorithm(model, family)
    num_rows = warm_start_rows(algorithm.gradient.problem)
    for one, other in zip(run_warm_start(algorithm, num_rows, jax.random.key(1), best), best, strict=True):
        np.testing.assert_array_equal(one, other)
    far = isotropic(family, 1.0, 0.1)
    reached = run_warm_start(algorithm, num_rows, jax.random.key(1), far)
    gap = [
        quell.exact_elbo(algorithm.gradient.problem, best) - quell.exact_elbo(algorithm.gradient.problem, w)
        for w in (reached, far)
    ]
    assert 0 < gap[0] < 2 * DIM * 32 < gap[1]


@pytest.mark.parametrize("mean", [0.0, 2000.0])
def test_a_warm_start_that_leaves_the_finite_numbers_ends_before(many, mean):
    family = quell.FullRank(DIM)
    gradient, start = exact_algorithm(poisson(), family).gradient, isotropic(family, mean, 1.0)
    astray = quell.Algorithm(gradient, optax.scale(np.nan))  # at 2000 the gradient itself is not finite
    reached = run_warm_start(astray, warm_start_rows(gradient.problem), jax.random.key(0), start)
    for one, other in zip(reached, start, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.release
def test_the_rows_are_those_of_the_fits_key(many, monkeypatch):
    model, family = logistic(), quell.FullRank(DIM)
    algorithm = exact_algorithm(model, family)
    num_rows, key, far = warm_start_rows(algorithm.gradient.problem), jax.random.key(3), isotropic(family, 1.0, 0.1)
    few = subset_algorithm(algorithm, num_rows)
    state, gain = few.init(far), np.inf
    while gain > DIM * 32:
        state, info = few.step(jax.random.fold_in(key, KEY_NUMBER), state)
        gain = 0.5 * info.combined_sq_norm
    for one, other in zip(run_warm_start(algorithm, num_rows, key, far), state.params, strict=True):
        np.testing.assert_allclose(one, other, **RUNS)
    monkeypatch.setattr(warm_start, "MOST_STEPS", 1)
    first, _ = few.step(jax.random.fold_in(key, KEY_NUMBER), few.init(far))
    for one, other in zip(warm_start.warm_start(algorithm, num_rows, key, far), first.params, strict=True):
        np.testing.assert_allclose(one, other, **RUNS)


@pytest.mark.release
def test_several_fits_begin_as_one_does(many):
    model, family, key = logistic(), quell.FullRank(DIM), jax.random.key(0)
    several = quell.fit_many(model, family, num_fits=2, steps=2, key=key)
    for result, own in zip(several, jax.random.split(key, 2), strict=True):
        alone = quell.fit(model, family, steps=2, key=own)
        np.testing.assert_allclose(result.history.combined_sq_norm, alone.history.combined_sq_norm, **RUNS)
        for one, other in zip(result.params, alone.params, strict=True):
            np.testing.assert_allclose(one, other, **RUNS)
    assert several[0].history.combined_sq_norm[0] != several[1].history.combined_sq_norm[0]  # rows of their own


@pytest.mark.release
def test_a_resumed_fit_has_the_same_bits(many, monkeypatch, tmp_path):
    """A fit begins once: a second warm start would move its parameters."""
    model, family, key = logistic(), quell.FullRank(DIM), jax.random.key(0)
    once = quell.fit(model, family, key=key, tolerance=1e-13)
    path = tmp_path / "fit.quell"
    stopped = quell.fit(
        model, family, key=key, tolerance=1e-13, checkpoint=quell.Checkpoint(path), callback=lambda told: told.step == 1
    )
    assert stopped.status is quell.Status.STOPPED
    again = quell.fit(model, family, key=key, tolerance=1e-13, checkpoint=quell.Checkpoint(path, resume=True))
    assert again.history.num_steps == once.history.num_steps > 2
    for one, other in zip(again.params, once.params, strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(warm_start, "SHARE", 16)
    with pytest.raises(quell.CheckpointError, match=r"rows of the warm start \(200 there, 400 here\)"):
        quell.fit(model, family, key=key, tolerance=1e-13, checkpoint=quell.Checkpoint(path, resume=True))


def test_a_step_may_go_the_further_the_more_data_there_are():
    for num, nats in ((1000, 100.0), (50_000, 500.0)):
        problem = quell.Problem(quell.logistic_regression(np.ones((num, 1)), np.ones(num)), quell.FullRank(1))
        expected = quell.natural_gradient(problem, momentum=0.0, max_kl=nats)
        assert default_optimizer(problem, 100, exact=True) is expected


@pytest.mark.release
@pytest.mark.parametrize("make", [logistic, poisson])
@pytest.mark.parametrize("family", [quell.MeanField(DIM), quell.FullRank(DIM)])
@pytest.mark.parametrize("is_many", [False, True])
def test_fits_converge_from_bad_starts(monkeypatch, make, family, is_many):
    model = make(num=50_000)
    monkeypatch.setattr(warm_start, "LEAST_NUMBERS", 10_000 if is_many else 10**9)
    best = quell.fit(model, family, key=jax.random.key(0))
    for mean, scale in ((3.0, 3.0), (0.0, 0.01), (-3.0, 1.0), (3.0, 0.01)):
        result = quell.fit(model, family, params=isotropic(family, mean, scale), key=jax.random.key(0))
        assert result.status is quell.Status.CONVERGED, (mean, scale)
        elbos = [quell.exact_elbo(best.problem, one.params) for one in (best, result)]
        np.testing.assert_allclose(*elbos, atol=2e-3, rtol=0)


def test_with_many_data_only_few_steps_see_all_of_them(monkeypatch):
    model, family = logistic(num=300), quell.FullRank(DIM)

    def choice(optimizer):
        return plan_of(model, family, optimizer=optimizer)

    assert choice(optax.adam(0.01)).choice.exact
    monkeypatch.setattr(method, "LARGEST_EXACT", 200)
    monkeypatch.setattr(defaults, "LARGEST_FULL", 200)
    assert choice(None).choice.exact
    sampled = choice(optax.adam(0.01))
    assert not sampled.choice.exact
    assert sampled.algorithm.gradient.sampler == quell.Sampler(1, 100)
    assert any("anchored" in repr(variate.approximation).lower() for variate in sampled.algorithm.gradient.variates)
    assert len(sampled.choice.variates) == 4


@pytest.fixture
def too_many_for_adam(many, monkeypatch):
    """A few thousand rows are too many for a pass per step."""
    monkeypatch.setattr(method, "LARGEST_EXACT", 200)
    monkeypatch.setattr(defaults, "LARGEST_FULL", 200)


@pytest.mark.release
@pytest.mark.parametrize("family", [quell.MeanField(DIM), quell.FullRank(DIM)])
def test_adam_begins_near_the_optimum_too_and_learns_weights_first(too_many_for_adam, family):
    model, key = logistic(), jax.random.key(3)
    sampled = plan_of(model, family, key, optimizer=optax.adam(0.01))
    exact = plan_of(model, family, key)
    assert not sampled.choice.exact
    assert "a warm start on 200 random data" in sampled.choice.reason
    assert int(sampled.policy.warm_up) == WARM_UP_STEPS
    starts = [one.first_params(key, one.start.params) for one in (sampled, exact)]
    for one, other, given in zip(*starts, sampled.start.params, strict=True):
        np.testing.assert_array_equal(one, other)
        assert jnp.max(jnp.abs(one - given)) > 0.1
    state = eqx.tree_at(lambda s: s.algorithm.params, sampled.start, starts[0])
    take = eqx.filter_jit(take_step)
    for step in range(WARM_UP_STEPS + 2):
        before, (state, _) = state, take(sampled.algorithm, sampled.policy, key, state)
        moved = bool(jnp.any(state.params.loc != before.params.loc))
        assert moved == (step >= WARM_UP_STEPS)
    few = plan_of(model, family, key, optimizer=optax.adam(0.01), steps=2 * WARM_UP_STEPS)
    assert int(few.policy.warm_up) == 0
    given = plan_of(model, family, key, optimizer=optax.adam(0.01), sampler=quell.Sampler(1, 50))
    assert given.warm_start is None


@pytest.mark.release
def test_adam_on_many_rows_arrives(too_many_for_adam):
    """With the prior strength of `Rule()`, which is per datum, weights stay too small to remove the noise."""
    model, family = logistic(), quell.FullRank(DIM)
    best = quell.fit(model, family, key=jax.random.key(0))

    def gap(**options):
        optimizer = optax.adam(optax.cosine_decay_schedule(0.01, 300))
        result = quell.fit(model, family, optimizer=optimizer, steps=300, key=jax.random.key(1), **options)
        return float(quell.exact_elbo(best.problem, best.params) - quell.exact_elbo(best.problem, result.params))

    assert gap() < 5e-4
    assert 2e-3 < gap(rule=quell.Rule()) < 0.1
    assert gap(variates=()) > 1


def test_a_family_without_natural_gradients_has_no_warm_start(too_many_for_adam):
    family = quell.Product({"a": quell.MeanField(2), "b": quell.FullRank(1)})
    made = plan_of(logistic(), family, steps=30)
    assert method.is_exact_for(quell.Problem(logistic(), family))
    assert made.warm_start is None
    assert "warm start" not in made.choice.reason


def test_rows_of_a_warm_start_are_fewer_where_fits_are_many(many, monkeypatch):
    monkeypatch.setattr(warm_start, "MOST_NUMBERS", 800)
    problem = quell.Problem(logistic(), quell.MeanField(DIM))
    assert [warm_start_rows(problem, num_fits=num) for num in (1, 2, 3)] == [200, 100, 66]


@pytest.mark.release
def test_a_warm_started_fit_with_adam_is_resumed_and_several_begin_as_one(too_many_for_adam, tmp_path):
    model, family, options = logistic(), quell.FullRank(DIM), {"optimizer": optax.adam(0.01)}
    key, *_ = jax.random.split(jax.random.key(2), 2)
    whole = quell.fit(model, family, steps=40, key=key, **options)
    for steps in (15, 40):  # the first ends before as many that weights may be learned from
        checkpoint = quell.Checkpoint(tmp_path / "fit.quell", resume=steps > 15)
        resumed = quell.fit(model, family, steps=steps, checkpoint=checkpoint, key=key, **options)
    assert resumed.history.elbo.size == 40
    for steps in (25, 40):
        checkpoint = quell.Checkpoint(tmp_path / "longer.quell", resume=steps > 25)
        resumed = quell.fit(model, family, steps=steps, checkpoint=checkpoint, key=key, **options)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    several = quell.fit_many(model, family, num_fits=2, steps=40, key=jax.random.key(2), **options)
    for one, other in zip(several[0].params, whole.params, strict=True):
        np.testing.assert_allclose(one, other, **RUNS)


@pytest.mark.release
def test_an_average_leaves_out_warm_up_steps(too_many_for_adam):
    model, family = logistic(), quell.MeanField(DIM)
    options = {"optimizer": optax.adam(0.01), "average_from": 0.0, "steps": 30, "key": jax.random.key(0)}
    start = isotropic(family, 5.0, 0.1)
    result = quell.fit(model, family, params=start, sampler=quell.Sampler(1, 100), **options)
    seen = []
    given = {"params": start, "sampler": quell.Sampler(1, 100), "optimizer": optax.adam(0.01), "steps": 30}
    made = plan_of(model, family, **given)
    state, take = made.start, eqx.filter_jit(take_step)
    for _ in range(30):
        state, _ = take(made.algorithm, made.policy, jax.random.key(0), state)
        seen.append(state.params.loc)
    np.testing.assert_allclose(result.params.loc, jnp.mean(jnp.stack(seen[WARM_UP_STEPS:]), axis=0), **RUNS)


def test_a_falling_rate_ends_with_the_steps_that_move():
    problem = quell.Problem(logistic(num=10), quell.Product({"a": quell.MeanField(DIM)}))
    for steps, moving in ((20, 20), (30, 20)):
        optimizer, params = default_optimizer(problem, steps), jnp.ones(2)
        state, moves = optimizer.init(params), []
        for _ in range(moving + 1):
            updates, state = optimizer.update(params, state, params)
            moves.append(float(jnp.max(jnp.abs(updates))))
        assert min(moves[:-1]) > 1e-5
        assert moves[-1] < 1e-12


def robust(num=NUM, scale=1.0):
    """A likelihood of two linear functions of the latent, which has no closed form."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(num, 2))
    rows = {"x": jnp.asarray(x), "y": jnp.asarray(x @ [1.0, -0.5] + scale * rng.standard_t(4, num))}

    def log_likelihood(z, rows):
        return -z[2] - 2.5 * jnp.log1p(jnp.square((rows["y"] - rows["x"] @ z[:2]) * jnp.exp(-z[2])) / 4)

    return quell.Model(log_likelihood, quell.NormalPrior(), rows, DIM)


def test_some_addends_stand_for_all():
    """Their weights add up to those of all; small groups, as the prior's, are kept whole."""
    whole = exactly(quell.Problem(robust(1000), quell.MeanField(DIM))).expectation
    gaussian = quell.MeanField(DIM).gaussian(quell.MeanField(DIM).init())
    part = whole.some(100)
    sizes, fewer = ([group.weight.size for group in one.groups] for one in (whole, part))
    assert fewer == [min(size, 100) for size in sizes]
    for one, other in zip(whole.groups, part.groups, strict=True):
        np.testing.assert_allclose(other.weight.sum(), one.weight.sum(), rtol=1e-6)
    assert abs(part(gaussian) - whole(gaussian)) < 0.2 * abs(whole(gaussian))
    assert whole.some(1000)(gaussian) == whole(gaussian)


@pytest.mark.slow
def test_a_fit_of_many_addends_begins_with_some_of_them_and_ends_where_it_would_have_ended(key, monkeypatch):
    def fit(**options):
        return quell.fit(robust(), quell.FullRank(DIM), key=key, **options)

    usual = fit()
    calls = []
    run = attempts.run_plan
    monkeypatch.setattr(attempts, "run_plan", lambda plan, bar: calls.append(plan) or run(plan, bar))
    monkeypatch.setattr(expectation, "MANY_EVALUATIONS", 0)
    found = fit()
    problems = [plan.algorithm.objective.problem for plan in calls]
    largest = [max(group.weight.size for group in problem.expectation.groups) for problem in problems]
    assert largest == [NUM // warm_start.SHARE, NUM]
    assert found.seconds.reading < 1.5 * calls[0].seconds  # and not twice
    assert found.status is quell.Status.CONVERGED
    assert found.problem.expectation.groups[0].weight.size == usual.problem.expectation.groups[0].weight.size
    np.testing.assert_allclose(found.final_elbo.value, usual.final_elbo.value, atol=0.02)
    calls.clear()
    fit(params=found.params)  # which are nearer than some rows could tell
    assert len(calls) == 1


def test_an_interrupted_warm_start_of_addends_is_told(key, monkeypatch):
    monkeypatch.setattr(expectation, "MANY_EVALUATIONS", 0)

    def interrupt(progress):
        raise KeyboardInterrupt

    result = quell.fit(robust(), quell.FullRank(DIM), key=key, callback=interrupt)
    assert result.status is quell.Status.INTERRUPTED
    assert max(group.weight.size for group in result.problem.expectation.groups) == NUM  # its ELBO is that of all rows


@pytest.mark.parametrize(("rows", "backend"), [(200, "cpu"), (NUM, "gpu")])
def test_no_warm_start_of_addends_where_they_are_few_or_an_accelerator_is_quick(rows, backend, monkeypatch):
    problem = exactly(quell.Problem(robust(rows), quell.MeanField(DIM)), 1)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    assert warm_start.warm_start_addends(problem) is None
