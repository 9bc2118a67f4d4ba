# SPDX-License-Identifier: Apache-2.0
"""NumPyro out: one line changed in an SVI script."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import infer
from numpyro.distributions import constraints
from numpyro.infer import autoguide
from numpyro.infer.util import potential_energy

import quell
from numpyro_models import CASES, LOGISTIC, SUBSAMPLED, Case
from quell.adapters import SVI, EnsembleELBO
from quell.adapters.numpyro import svi as svi_module
from quell.adapters.numpyro.trace_ensemble import TraceEnsemble
from tolerances import EXACT, STANDARD_ERRORS

pytestmark = pytest.mark.slow

GUIDES = {
    "diagonal": autoguide.AutoDiagonalNormal,
    "by site": autoguide.AutoNormal,
    "full rank": autoguide.AutoMultivariateNormal,
    "low rank": autoguide.AutoLowRankMultivariateNormal,
}
SCHOOLS = CASES["eight schools"]


def start(case, guide, *, loss=None, optimizer=None, key=0):
    svi = SVI(case.model, guide, optimizer or numpyro.optim.Adam(0.05), loss or EnsembleELBO())
    return svi, svi.init(jax.random.key(key), *case.args, **case.kwargs)


@pytest.mark.parametrize(("name", "case"), [*((name, SCHOOLS) for name in GUIDES), ("full rank", LOGISTIC)])
def test_a_known_guide_is_a_family_under_other_parameters(name, case):
    """The family's density is the guide's, and the model's log joint NumPyro's, at the same flat latent."""
    guide = GUIDES[name](case.model)
    svi, state = start(case, guide)
    params = svi.get_params(state)
    params = {site: value + 0.05 * jnp.arange(value.size).reshape(value.shape) for site, value in params.items()}
    if "auto_scale_tril" in params:
        params["auto_scale_tril"] = jnp.tril(params["auto_scale_tril"])
    gradient, to_params = svi._ensemble.gradient((case.args, case.kwargs))
    model, family = gradient.problem.model, gradient.problem.family
    z = jnp.sin(jnp.arange(1.0, model.dim + 1))
    latents = model.unravel(z)
    np.testing.assert_allclose(
        jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z),
        -potential_energy(case.model, case.args, dict(case.kwargs), latents),
        **EXACT,
    )
    if isinstance(guide, autoguide.AutoContinuous):
        expected = jnp.sum(guide.get_posterior(params).log_prob(z))
        assert list(guide._unpack_latent(z)) == list(latents)
    else:
        sites = {site: dist.Normal(params[f"{site}_auto_loc"], params[f"{site}_auto_scale"]) for site in latents}
        expected = sum(jnp.sum(sites[site].log_prob(value)) for site, value in latents.items())
    np.testing.assert_allclose(family.log_prob(to_params(params), z), expected, **EXACT)


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.release
def test_a_step_of_gradient_descent_follows_the_gradient_of_minus_the_elbo(name):
    """The first step has no weights yet: it is the base gradient, in NumPyro's unconstrained parameters, in nats."""
    svi, state = start(SCHOOLS, GUIDES[name](SCHOOLS.model), optimizer=optax.sgd(1e-3))
    gradient, to_params = svi._ensemble.gradient((SCHOOLS.args, SCHOOLS.kwargs))
    model, family = gradient.problem.model, gradient.problem.family
    unconstrained = svi.optim.get_params(state.optim_state)
    _, key = jax.random.split(state.rng_key)
    noise = gradient.sampler.draw(key, family, model.num_data, jnp.float64).noise

    def minus_elbo(free):
        params = to_params(svi.constrain_fn(free))
        z = family.algebra(params, noise).latents(family.sampling)[0]
        log_joint = jnp.sum(model.log_likelihood(z, model.data)) + model.prior.log_prob(z)
        return -log_joint - family.entropy(params)

    after, _ = svi.update(state, *SCHOOLS.args, **SCHOOLS.kwargs)
    expected = jax.tree.map(lambda u, g: u - 1e-3 * g, unconstrained, jax.grad(minus_elbo)(unconstrained))
    found = svi.optim.get_params(after.optim_state)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), found, expected)


@pytest.mark.release
def test_the_first_step_with_an_unknown_guide_is_that_of_numpyro():
    svi, state = start(LOGISTIC, hand_written, optimizer=optax.sgd(1e-3))
    unconstrained = svi.optim.get_params(state.optim_state)
    _, key = jax.random.split(state.rng_key)

    def loss(free):
        params = svi.constrain_fn(free)
        return infer.Trace_ELBO().loss(key, params, LOGISTIC.model, hand_written, *LOGISTIC.args)

    after, value = svi.update(state, *LOGISTIC.args)
    np.testing.assert_allclose(value, loss(unconstrained), **EXACT)
    expected = jax.tree.map(lambda u, g: u - 1e-3 * g, unconstrained, jax.grad(loss)(unconstrained))
    found = svi.optim.get_params(after.optim_state)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), found, expected)


def normal_mean(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


Y = jnp.array([1.2, -0.3, 0.8, 2.1, 0.4, -1.0, 0.9, 1.5, 0.2, 0.6])


def _fitted_sd(loss):
    svi = svi_class(loss)(normal_mean, autoguide.AutoNormal(normal_mean), numpyro.optim.Adagrad(1.0), loss)
    return svi.run(jax.random.key(0), 1000, Y, progress_bar=False).params["mean_auto_scale"]


def svi_class(loss):
    return SVI if isinstance(loss, EnsembleELBO) else infer.SVI


@pytest.mark.release
def test_the_posterior_width_is_right_with_one_sample_per_step():
    exact = 1 / jnp.sqrt(11.0)
    assert abs(_fitted_sd(EnsembleELBO()) / exact - 1) < 0.01
    assert abs(_fitted_sd(infer.Trace_ELBO()) / exact - 1) > 0.01, "the plain gradient is off by more"


@pytest.mark.parametrize(("name", "case"), [("by site", SCHOOLS), ("full rank", LOGISTIC)])
@pytest.mark.release
def test_one_line_swap_ends_at_an_elbo_at_least_as_good(name, case):
    def final(svi_class, loss):
        guide = GUIDES[name](case.model)
        svi = svi_class(case.model, guide, numpyro.optim.Adam(0.05), loss)
        result = svi.run(jax.random.key(0), 400, *case.args, progress_bar=False, **case.kwargs)
        many = infer.Trace_ELBO(num_particles=4000)
        return -many.loss(jax.random.key(1), result.params, case.model, guide, *case.args, **case.kwargs)

    assert final(SVI, EnsembleELBO()) > final(infer.SVI, infer.Trace_ELBO())


@pytest.mark.release
def test_update_in_a_scan_is_run():
    svi, state = start(LOGISTIC, autoguide.AutoNormal(LOGISTIC.model))
    by_hand, losses = jax.lax.scan(lambda now, _: svi.update(now, *LOGISTIC.args), state, None, length=5)
    result = svi.run(jax.random.key(0), 5, *LOGISTIC.args, progress_bar=False)
    np.testing.assert_allclose(losses, result.losses, **EXACT)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), svi.get_params(by_hand), result.params)


@pytest.mark.parametrize("optimizer", [optax.adam(0.05), numpyro.optim.ClippedAdam(0.05)], ids=["optax", "clipped"])
@pytest.mark.release
def test_optimisers_and_subsampled_plates(optimizer):
    svi, state = start(SUBSAMPLED, autoguide.AutoMultivariateNormal(SUBSAMPLED.model), optimizer=optimizer)
    update = jax.jit(lambda now: svi.update(now, *SUBSAMPLED.args, **SUBSAMPLED.kwargs))
    before = svi.evaluate(state, *LOGISTIC.args)
    for _ in range(100):
        state, loss = update(state)
    assert jnp.isfinite(loss)
    assert svi.evaluate(state, *LOGISTIC.args) < before
    weights = svi.weights(state, *SUBSAMPLED.args, **SUBSAMPLED.kwargs)
    assert any(abs(weight) > 0.1 for weight in weights.values())


def test_minibatches_fed_by_hand_are_scaled_to_all_data():
    def fed(x, y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("rows", 40, subsample_size=x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)

    x, y = LOGISTIC.args
    svi, state = start(Case(fed, (x[:10], y[:10])), autoguide.AutoNormal(fed))
    gradient, _ = svi._ensemble.gradient(((x[:10], y[:10]), {}))
    z = jnp.array([0.3, -0.2, 0.1])
    expected = 4.0 * dist.Bernoulli(logits=x[:10] @ z).log_prob(y[:10])
    model = gradient.problem.model
    np.testing.assert_allclose(model.log_likelihood(z, model.data), expected, **EXACT)
    for k in range(2):
        state, loss = svi.update(state, x[10 * k : 10 * k + 10], y[10 * k : 10 * k + 10])
        assert jnp.isfinite(loss)


def test_stable_update_keeps_everything_where_a_step_is_not_finite():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    svi, state = start(Case(model, (Y,)), autoguide.AutoNormal(model))
    update = jax.jit(svi.stable_update)
    after, loss = update(state, Y)
    assert jnp.isfinite(loss)
    broken, loss = update(after, Y.at[0].set(jnp.nan))
    assert jnp.isnan(loss)
    same = (broken.optim_state, broken.ensemble), (after.optim_state, after.ensemble)
    jax.tree.map(np.testing.assert_array_equal, *same)
    assert not np.array_equal(jax.random.key_data(broken.rng_key), jax.random.key_data(after.rng_key))


def hand_written(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    scale = numpyro.param("scale", jnp.full(x.shape[1], 0.3), constraint=constraints.positive)
    weights = numpyro.sample("weights", dist.Normal(loc, scale).to_event(1))
    slope = numpyro.param("slope", 0.1)
    numpyro.sample("bias", dist.Normal(slope * weights.sum(), 0.5))


def mixture(y):
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        which = numpyro.sample("which", dist.Bernoulli(share))
        numpyro.sample("y", dist.Normal(2.0 * which, 1.0), obs=y)


def mixture_guide(y):
    shape = numpyro.param("shape", jnp.array([2.0, 3.0]), constraint=constraints.positive)
    numpyro.sample("share", dist.Beta(shape[0], shape[1]))
    logits = numpyro.param("logits", jnp.full(y.shape[0], 0.1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("which", dist.Bernoulli(logits=logits))


UNKNOWN = {
    "hand-written": (LOGISTIC, hand_written, ("score(weights)", "score(bias)", "kl(weights)", "kl(bias)")),
    "discrete": (Case(mixture, (Y[:3],)), mixture_guide, ("score(share)", "score(which)")),
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.release
def test_variates_of_unknown_guides_have_mean_zero_and_lower_the_variance(name):
    """By 20,000 particles; with scores alone for the discrete site, whose base gradient is checked by enumeration."""
    case, guide, names = UNKNOWN[name]
    svi, state = start(case, guide)
    ensemble, params = svi._ensemble, svi.get_params(state)
    assert ensemble.names(params, (case.args, case.kwargs)) == names
    flat, unflatten = jax.flatten_util.ravel_pytree(params)

    def rows(key):
        def values(vector):
            particle = ensemble.particle(key, unflatten(vector), (case.args, case.kwargs))
            return jnp.stack([particle.surrogate(), *particle.variates().values()])

        return jax.jacrev(values)(flat)

    grads = jax.lax.map(jax.vmap(rows), jax.random.split(jax.random.key(3), (20, 1000))).reshape(20_000, -1, flat.size)
    means, errors = grads.mean(axis=0), grads.std(axis=0) / jnp.sqrt(20_000)
    assert (jnp.abs(means[1:]) <= STANDARD_ERRORS * errors[1:] + 1e-12).all()
    assert not (jnp.abs(means[1:] + 0.1 * grads[:, 1:].std(axis=0)) <= STANDARD_ERRORS * errors[1:]).all()
    centred = (grads - means).reshape(20_000, len(names) + 1, -1)
    joint = jnp.einsum("rip,rjp->ij", centred, centred)
    best = -jnp.linalg.lstsq(joint[1:, 1:], joint[1:, 0])[0]
    assert joint[0, 0] + best @ joint[1:, 0] < 0.9 * joint[0, 0]
    if name == "discrete":
        exact = jax.grad(lambda vector: _exact_mixture_elbo(unflatten(vector)))(flat)
        assert (jnp.abs(means[0] - exact) <= STANDARD_ERRORS * errors[0]).all()


def _exact_mixture_elbo(params):
    """The discrete latents by enumeration, the share by its moments."""
    one, two = params["shape"]
    total = one + two
    log_share = jax.scipy.special.digamma(one) - jax.scipy.special.digamma(total)
    log_rest = jax.scipy.special.digamma(two) - jax.scipy.special.digamma(total)
    on = jax.nn.sigmoid(params["logits"])
    y = Y[:3]
    data = on * dist.Normal(2.0, 1.0).log_prob(y) + (1 - on) * dist.Normal(0.0, 1.0).log_prob(y)
    prior = jnp.sum(on * log_share + (1 - on) * log_rest)
    entropy = jnp.sum(-on * jnp.log(on) - (1 - on) * jnp.log(1 - on))
    kl = dist.kl_divergence(dist.Beta(one, two), dist.Beta(2.0, 2.0))
    return jnp.sum(data) + prior + entropy - kl


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_guides_are_fitted(name):
    case, guide, _ = UNKNOWN[name]
    svi = SVI(case.model, guide, numpyro.optim.Adam(0.02), EnsembleELBO(num_particles=2))
    result = svi.run(jax.random.key(0), 300, *case.args, progress_bar=False)
    assert result.losses[-100:].mean() < result.losses[:20].mean()


def test_a_model_with_parameters_of_its_own_is_fitted_by_its_sites():
    def model(y):
        scale = numpyro.param("noise", 1.0, constraint=constraints.positive)
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, scale), obs=y)

    with pytest.warns(UserWarning, match="`param` site 'noise'"):
        svi, state = start(Case(model, (Y,)), autoguide.AutoNormal(model))
    assert isinstance(svi._ensemble, TraceEnsemble)
    after, _ = svi.update(state, Y)
    assert svi.get_params(after)["noise"] != svi.get_params(state)["noise"]


def test_only_steps_on_the_same_data_keep_what_was_computed_from_all_of_it():
    def names(ensemble):
        return ensemble.gradient((SUBSAMPLED.args, SUBSAMPLED.kwargs))[0].names

    guide = autoguide.AutoNormal(SUBSAMPLED.model)
    svi, state = start(SUBSAMPLED, guide)
    assert not any("[all]" in name for name in names(svi._ensemble))
    kept = EnsembleELBO(same_data=True).ensemble(SUBSAMPLED.model, guide)
    assert any("[all]" in name for name in names(kept))
    result = svi.run(jax.random.key(0), 3, *SUBSAMPLED.args, progress_bar=False, init_state=state, **SUBSAMPLED.kwargs)
    assert jnp.isfinite(result.losses).all()
    assert svi.loss.same_data is False
    learned = result.state.ensemble
    forgotten = svi._ensemble.forget_data(learned, (SUBSAMPLED.args, SUBSAMPLED.kwargs))
    anchors = [one for one in zip(learned.variates, forgotten.variates, strict=True) if one[0] is not None]
    assert anchors
    assert all(before.is_set["data"] and not after.is_set["data"] for before, after in anchors)
    np.testing.assert_array_equal(learned.moments.total, forgotten.moments.total)


@pytest.mark.release
def test_a_discrete_site_that_depends_on_a_continuous_one_has_an_unbiased_gradient():
    def model():
        first = numpyro.sample("first", dist.Normal(0.0, 1.0))
        numpyro.sample("second", dist.Bernoulli(logits=first))
        numpyro.factor("reward", first)

    def guide():
        first = numpyro.sample("first", dist.Normal(numpyro.param("w", 0.3), 1.0))
        numpyro.sample("second", dist.Bernoulli(logits=2.0 * first))

    svi = SVI(model, guide, numpyro.optim.Adam(0.1), EnsembleELBO())
    svi.init(jax.random.key(0))

    def exact(w):
        nodes, mass = np.polynomial.hermite_e.hermegauss(60)
        first = w + nodes
        on = jax.nn.sigmoid(2.0 * first)
        log_p = dist.Normal(0.0, 1.0).log_prob(first) - dist.Normal(w, 1.0).log_prob(first) + first
        of_second = sum(
            share * (dist.Bernoulli(logits=first).log_prob(value) - dist.Bernoulli(logits=2.0 * first).log_prob(value))
            for value, share in ((1, on), (0, 1 - on))
        )
        return jnp.sum(mass * (log_p + of_second)) / jnp.sqrt(2 * jnp.pi)

    def sampled(key):
        return jax.grad(lambda w: svi._ensemble.particle(key, {"w": w}, ((), {})).surrogate())(0.3)

    grads = jax.vmap(sampled)(jax.random.split(jax.random.key(1), 20_000))
    error = grads.std() / jnp.sqrt(20_000)
    assert abs(grads.mean() - jax.grad(exact)(0.3)) < STANDARD_ERRORS * error


def test_factors_and_observed_sites_of_a_guide_are_no_scores():
    """Against the gradient of the exact ELBO, with 20,000 particles; a false alarm in 1.7 million comparisons."""

    def model():
        numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("k", dist.Bernoulli(0.3))

    def guide():
        w = numpyro.param("w", 0.7)
        numpyro.factor("weight", w * numpyro.sample("z", dist.Normal(w, 1.0)))
        numpyro.sample("seen", dist.Normal(w**2, 1.0), obs=0.5)
        numpyro.sample("count", dist.Poisson(jnp.exp(w)), obs=3)
        numpyro.sample("k", dist.Bernoulli(logits=w))

    def exact(w):
        of_guide = w**2 + dist.Normal(w**2, 1.0).log_prob(0.5) + dist.Poisson(jnp.exp(w)).log_prob(3)
        on = jax.nn.sigmoid(w)
        of_k = on * jnp.log(on / 0.3) + (1 - on) * jnp.log((1 - on) / 0.7)
        return -dist.kl_divergence(dist.Normal(w, 1.0), dist.Normal(0.0, 1.0)) - of_k - of_guide

    svi = SVI(model, guide, numpyro.optim.Adam(0.1), EnsembleELBO())
    params = svi.get_params(svi.init(jax.random.key(0)))
    ensemble = svi._ensemble
    assert ensemble.names(params, ((), {})) == ("score(z)", "score(k)")
    keys = jax.random.split(jax.random.key(1), 20_000)

    def surrogate(w, key):
        return ensemble.particle(key, {"w": w}, ((), {})).surrogate()

    def landing(w, key):
        return -ensemble.stick_the_landing(key, {"w": w}, ((), {}))[0]

    for value in (surrogate, landing):
        grads = jax.vmap(jax.grad(value), (None, 0))(params["w"], keys)
        error = STANDARD_ERRORS * grads.std() / jnp.sqrt(20_000)
        assert abs(grads.mean() - jax.grad(exact)(0.7)) < error
        assert abs(grads.mean() + 0.1 * grads.std() - jax.grad(exact)(0.7)) > error


def test_a_divergence_of_scaled_sites_is_not_a_variate():
    def model():
        with numpyro.handlers.scale(scale=0.1):
            numpyro.sample("z", dist.Normal(0.0, 1.0))

    def guide():
        numpyro.sample("z", dist.Normal(numpyro.param("w", 0.7), 1.0))

    svi = SVI(model, guide, numpyro.optim.Adam(0.1), EnsembleELBO())
    state = svi.init(jax.random.key(0))
    assert svi._ensemble.names(svi.get_params(state), ((), {})) == ("score(z)", "entropy(z)")


def test_an_annealed_prior_is_fitted():
    def model(y, heat):
        with numpyro.handlers.scale(scale=heat):
            mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    svi = SVI(model, autoguide.AutoNormal(model), numpyro.optim.Adam(0.1), EnsembleELBO())
    state = svi.init(jax.random.key(0), Y, jnp.array(0.5))
    assert jnp.isfinite(svi.update(state, Y, jnp.array(0.6))[1])


@pytest.mark.release
def test_numpyros_own_svi_sticks_the_landing_with_a_warning(monkeypatch):
    svi_module._warn_once.cache_clear()
    guide = autoguide.AutoNormal(normal_mean)
    svi = infer.SVI(normal_mean, guide, numpyro.optim.Adam(0.1), EnsembleELBO(num_particles=2))
    with pytest.warns(UserWarning, match="from quell.adapters import SVI"):
        result = svi.run(jax.random.key(0), 500, Y, progress_bar=False)
    np.testing.assert_allclose(result.params["mean_auto_scale"], 1 / jnp.sqrt(11.0), rtol=0.01)
    exact = {"mean_auto_loc": Y.sum() / 11.0, "mean_auto_scale": 1 / jnp.sqrt(11.0)}
    grad = jax.grad(lambda params: EnsembleELBO().loss(jax.random.key(0), params, normal_mean, guide, Y))(exact)
    assert max(abs(leaf) for leaf in grad.values()) < 1e-6, "no noise is left at the posterior"


def test_another_loss_is_numpyros():
    svi = SVI(normal_mean, autoguide.AutoNormal(normal_mean), numpyro.optim.Adam(0.1), infer.Trace_ELBO())
    plain = infer.SVI(normal_mean, autoguide.AutoNormal(normal_mean), numpyro.optim.Adam(0.1), infer.Trace_ELBO())
    ours, theirs = (one.run(jax.random.key(0), 3, Y, progress_bar=False).losses for one in (svi, plain))
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="`weights` needs an `EnsembleELBO`"):
        svi.weights(svi.init(jax.random.key(0), Y), Y)


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match=r"`variates` .* got function"):
        start(LOGISTIC, hand_written, loss=EnsembleELBO(variates=quell.paper.variates("S7")))
    with pytest.raises(ValueError, match=r"`num_particles` .* got 0"):
        EnsembleELBO(0)
