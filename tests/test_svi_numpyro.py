# SPDX-License-Identifier: Apache-2.0
"""What NumPyro's losses can do, `EnsembleELBO` can do: networks, mutable sites, other modes and other guides."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.example_libraries import stax
from jax.flatten_util import ravel_pytree
from numpyro import infer
from numpyro.distributions import constraints, flows
from numpyro.infer import autoguide
from numpyro.nn import AutoregressiveNN
from numpyro.primitives import mutable

import quell
from quell.adapters import SVI, EnsembleELBO
from quell.adapters.numpyro import particle as particle_module
from tolerances import EXACT, STANDARD_ERRORS

pytestmark = pytest.mark.slow

X = jnp.linspace(-1.0, 1.0, 20)
Y = 1.0 + 2.0 * X + 0.3 * jnp.sin(20.0 * X)
IMAGES = (jnp.sin(jnp.arange(96.0) ** 2).reshape(16, 6) > 0).astype(float)


def line(x, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(1.0 + slope * x, noise), obs=y)


def vae(images, latent_dim=2):
    num, dim = images.shape
    decode = numpyro.module("decoder", stax.serial(stax.Dense(4), stax.Tanh, stax.Dense(dim)), (num, latent_dim))
    with numpyro.plate("images", num):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([latent_dim]).to_event(1))
        numpyro.sample("pixels", dist.Bernoulli(logits=decode(z)).to_event(1), obs=images)


def vae_guide(images, latent_dim=2):
    heads = stax.parallel(stax.Dense(latent_dim), stax.serial(stax.Dense(latent_dim), stax.Exp))
    network = stax.serial(stax.Dense(4), stax.Tanh, stax.FanOut(2), heads)
    loc, scale = numpyro.module("encoder", network, images.shape)(images)
    with numpyro.plate("images", images.shape[0]):
        numpyro.sample("z", dist.Normal(loc, scale).to_event(1))


NETWORKS = {
    "AutoIAFNormal": (line, autoguide.AutoIAFNormal(line, num_flows=2, hidden_dims=[3]), (X, Y), 0.9),
    "AutoBNAFNormal": (line, autoguide.AutoBNAFNormal(line, hidden_factors=[2]), (X, Y), 0.9),
    "VAE": (vae, vae_guide, (IMAGES,), 0.7),
}
"""Model, guide, arguments, and the share of the variance of NumPyro's gradient that is left after 300 steps."""


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_trained_without_bias_and_with_less_variance(name):
    """By 2,000 particles: the base gradient is NumPyro's for the same key, and the variates have mean zero."""
    model, guide, args, share = NETWORKS[name]
    svi = SVI(model, guide, numpyro.optim.Adam(0.01))
    result = svi.run(jax.random.key(0), 300, *args, progress_bar=False)
    assert result.losses[-50:].mean() < result.losses[:50].mean()
    ensemble, (flat, unflatten) = svi._ensemble, ravel_pytree(result.params)

    def gradients(key):
        def values(vector):
            particle = ensemble.particle(key, unflatten(vector), (args, {}))
            theirs = -infer.Trace_ELBO().loss(key, unflatten(vector), model, guide, *args)
            return jnp.stack([theirs, particle.surrogate(), *particle.variates().values()])

        return jax.jacrev(values)(flat)

    num = 2_000
    theirs, rows = jnp.split(jax.lax.map(gradients, jax.random.split(jax.random.key(1), num), batch_size=500), [1], 1)
    np.testing.assert_allclose(rows[:, :1], theirs, **EXACT)
    variates, errors = rows[:, 1:], rows[:, 1:].std(axis=0) / jnp.sqrt(num)
    rounding = 1e-9 * errors.max()  # weights that a normalisation cancels have gradients of nothing but rounding
    assert (jnp.abs(variates.mean(axis=0)) <= STANDARD_ERRORS * errors + rounding).all()
    planted = variates.mean(axis=0) + 0.1 * variates.std(axis=0)
    assert not (jnp.abs(planted) <= STANDARD_ERRORS * errors + rounding).all()
    weights = jnp.stack(list(svi.weights(result.state, *args).values()))
    combined = rows[:, 0] + jnp.einsum("v,rvp->rp", weights, variates)
    assert combined.var(axis=0).sum() < share * rows[:, 0].var(axis=0).sum()
    predicted = infer.Predictive(model, guide=guide, params=result.params, num_samples=2)(jax.random.key(2), *args)
    assert all(jnp.isfinite(value).all() for value in predicted.values())


def test_weights_by_leaf_are_one_for_each_network():
    model, guide, args, _ = NETWORKS["VAE"]
    svi = SVI(model, guide, numpyro.optim.Adam(0.01), EnsembleELBO(rule=quell.Rule(by_leaf=True)))
    result = svi.run(jax.random.key(0), 2, *args, progress_bar=False)
    weights = svi.weights(result.state, *args)
    leaves = ("decoder$params", "encoder$params")
    assert list(weights) == [f"{variate}[{leaf}]" for leaf in leaves for variate in ("score(z)", "kl(z)")]


def test_the_score_of_a_flow_is_that_of_its_inverse():
    """For one flow per row of a plate, against the density at the inverse, which this flow has."""
    init, apply = AutoregressiveNN(3, [4])
    _, params = init(jax.random.key(0), (3,))
    flat, unflatten = ravel_pytree(params)

    def site(vector):
        network = flows.InverseAutoregressiveTransform(lambda x: apply(unflatten(vector), x))
        base = dist.Normal(vector[0] * jnp.ones((5, 3)), jnp.exp(vector[1])).to_event(1)
        fn = dist.TransformedDistribution(base, [network, network])
        value, intermediates = fn.sample_with_intermediates(jax.random.key(1))
        return {"fn": fn, "value": value, "intermediates": intermediates}

    def by_inverse(vector):
        return jnp.sum(site(vector)["fn"].log_prob(jax.lax.stop_gradient(site(vector)["value"])))

    def without_inverse(vector):
        return jnp.sum(particle_module._flow_score(site(vector)))

    ours, exact = (jax.jit(jax.grad(function))(flat) for function in (without_inverse, by_inverse))
    np.testing.assert_allclose(ours, exact, **EXACT)
    assert particle_module._is_flow(site(flat))


def test_a_wide_flow_has_no_score(monkeypatch):
    model, guide, args, _ = NETWORKS["AutoBNAFNormal"]
    svi = SVI(model, guide, numpyro.optim.Adam(0.01))
    params = svi.get_params(svi.init(jax.random.key(0), *args))
    assert svi._ensemble.names(params, (args, {})) == ("score(_auto_latent)",)
    monkeypatch.setattr(particle_module, "WIDEST_FLOW", 1)
    assert svi._ensemble.names(params, (args, {})) == ()
    assert jnp.isfinite(svi.run(jax.random.key(0), 2, *args, progress_bar=False).losses).all()


def count_runs(y=0.5):
    counter = mutable("runs of the model", {"value": jnp.zeros(())})
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(z + counter["value"], 1.0), obs=y)
    counter["value"] = counter["value"] + 1.0


def count_runs_guide(y=0.5):
    counter = mutable("runs of the guide", {"value": jnp.zeros(())})
    counter["value"] = counter["value"] + 10.0
    numpyro.sample("z", dist.Normal(numpyro.param("loc", 0.2), 0.5))


def counters(state):
    return [state.mutable_state[f"runs of the {name}"]["value"] for name in ("model", "guide")]


def test_mutable_sites_are_carried_from_step_to_step():
    """Each run counts once, though variates run the guide twice, and the model sees the count before the step."""
    svi = SVI(count_runs, count_runs_guide, numpyro.optim.Adam(0.01))
    state = svi.init(jax.random.key(0))
    assert counters(state) == [1.0, 10.0]
    after, loss = jax.jit(svi.update)(state)
    assert counters(after) == [2.0, 20.0]
    plain = infer.SVI(count_runs, count_runs_guide, numpyro.optim.Adam(0.01), infer.Trace_ELBO())
    theirs, their_loss = plain.update(plain.init(jax.random.key(0)))
    np.testing.assert_allclose(loss, their_loss, **EXACT)
    assert counters(theirs) == counters(after)
    assert counters(svi.run(jax.random.key(0), 3, progress_bar=False).state) == [4.0, 40.0]
    evaluated = svi.evaluate(after)
    assert counters(after) == [2.0, 20.0]
    assert evaluated != svi.evaluate(after._replace(mutable_state=state.mutable_state))
    stable_update = jax.jit(svi.stable_update)
    broken, loss = stable_update(after, y=jnp.nan)
    assert jnp.isnan(loss)
    assert counters(broken) == counters(after)
    assert counters(stable_update(after, y=0.5)[0]) == [3.0, 30.0]
    assert svi.weights(after).keys() == {"score(z)", "kl(z)"}


def test_with_several_particles_the_mutable_state_is_the_first_ones():
    svi = SVI(count_runs, count_runs_guide, numpyro.optim.Adam(0.01), EnsembleELBO(3))
    with pytest.warns(UserWarning, match="mutable state"):
        result = svi.run(jax.random.key(0), 3, progress_bar=False)
    assert counters(result.state) == [4.0, 40.0]


def test_a_parameter_of_the_guide_is_known_to_the_model():
    def model():
        shared = numpyro.param("shared")
        assert shared is not None
        numpyro.factor("distance", -((shared - 2.0) ** 2))

    def guide():
        numpyro.param("shared", lambda key: 1.5)

    svi = SVI(model, guide, numpyro.optim.Adam(0.05))
    assert svi.get_params(svi.init(jax.random.key(0)))["shared"] == 1.5
    np.testing.assert_allclose(svi.run(jax.random.key(0), 300, progress_bar=False).params["shared"], 2.0, atol=0.05)


def test_initial_values_are_not_traced():
    """A model may look at the values of its parameters when it is initialised, as it may in NumPyro."""

    def model():
        assert float(numpyro.param("shared")) == 1.5

    svi = SVI(model, lambda: numpyro.param("shared", 1.5), numpyro.optim.Adam(0.05))
    svi.init(jax.random.key(0))


def gamma_guide(x, y=None):
    loc = numpyro.param("loc", 0.5)
    rate = numpyro.param("rate", 3.0, constraint=constraints.positive)
    numpyro.sample("slope", dist.Normal(loc, 0.5))
    numpyro.sample("noise", dist.Gamma(2.0, rate))


@pytest.mark.parametrize("num_particles", [1, 3])
def test_terms_by_site_and_their_sum_are_those_of_numpyro(num_particles):
    svi = SVI(line, gamma_guide, numpyro.optim.Adam(0.01), EnsembleELBO(num_particles, sum_sites=False))
    plain = infer.SVI(line, gamma_guide, numpyro.optim.Adam(0.01), infer.Trace_ELBO(num_particles))
    state = svi.init(jax.random.key(0), X, Y)
    by_site = svi.evaluate(state, X, Y)
    assert by_site.keys() == {"slope", "noise", "y"}
    total = plain.evaluate(plain.init(jax.random.key(0), X, Y), X, Y)
    np.testing.assert_allclose(sum(by_site.values()), total, **EXACT)
    np.testing.assert_allclose(jax.jit(svi.update)(state, X, Y)[1], total, **EXACT)
    _, key = jax.random.split(state.rng_key)
    direct = svi.loss.loss(key, svi.get_params(state), line, gamma_guide, X, Y)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), direct, by_site)


def test_particles_one_after_the_other_are_those_at_once():
    calls = []

    def in_pairs(fn, keys):
        calls.append(len(keys))
        return jax.lax.map(fn, keys, batch_size=2)

    def losses(vectorize_particles):
        loss = EnsembleELBO(4, vectorize_particles=vectorize_particles)
        svi = SVI(line, gamma_guide, numpyro.optim.Adam(0.01), loss)
        return svi.run(jax.random.key(0), 5, X, Y, progress_bar=False).losses

    at_once = losses(True)
    np.testing.assert_allclose(losses(False), at_once, **EXACT)
    np.testing.assert_allclose(losses(in_pairs), at_once, **EXACT)
    assert set(calls) == {4}


def test_forward_mode_is_reverse_mode():
    def losses(mode, **kwargs):
        svi = SVI(line, gamma_guide, numpyro.optim.Adam(0.01), EnsembleELBO(2))
        options = {"progress_bar": False, "forward_mode_differentiation": mode, **kwargs}
        return svi.run(jax.random.key(0), 5, X, Y, **options).losses

    np.testing.assert_allclose(losses(True), losses(False), **EXACT)
    np.testing.assert_allclose(losses(True, stable_update=True), losses(False), **EXACT)


def test_a_model_that_only_forward_mode_differentiates_is_fitted():
    def model():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        halved = jax.lax.while_loop(lambda value: jnp.abs(value) > 1.0, lambda value: value / 2.0, z)
        numpyro.sample("y", dist.Normal(halved, 0.1), obs=0.5)

    def guide():
        scale = numpyro.param("scale", 0.5, constraint=constraints.positive)
        numpyro.sample("z", dist.Normal(numpyro.param("loc", 0.0), scale))

    svi = SVI(model, guide, numpyro.optim.Adam(0.02))
    result = svi.run(jax.random.key(0), 300, progress_bar=False, forward_mode_differentiation=True)
    np.testing.assert_allclose(result.params["loc"], 0.5, atol=0.1)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        svi.update(svi.init(jax.random.key(0)))


def test_a_guide_that_proposes_several_samples():
    """The first gradient is NumPyro's, and the fit is that of the posterior."""

    def model():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=3.0)

    def guide():
        loc = numpyro.param("loc", 0.3)
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        numpyro.sample("z", dist.Normal(loc, scale).expand([4]))

    svi = SVI(model, guide, numpyro.optim.Adam(0.02), EnsembleELBO(2, multi_sample_guide=True))
    theirs = infer.Trace_ELBO(2, multi_sample_guide=True)
    state = svi.init(jax.random.key(0))
    params, key = svi.get_params(state), jax.random.key(1)
    loss, grads, *_ = jax.jit(lambda given: svi._ensemble.update(key, given, state.ensemble, ((), {})))(params)
    expected = jax.jit(jax.value_and_grad(lambda given: theirs.loss(key, given, model, guide)))(params)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, **EXACT), (loss, grads), expected)
    assert svi.weights(state).keys() == {"score(z)", "entropy(z)"}
    params = svi.run(jax.random.key(0), 800, progress_bar=False).params
    np.testing.assert_allclose((params["loc"], params["scale"]), (1.5, jnp.sqrt(0.5)), rtol=0.01)


def test_an_optimiser_of_many_evaluations_gets_the_loss_of_numpyro():
    guide = autoguide.AutoLaplaceApproximation(line)
    with pytest.warns(UserWarning, match="`Minimize` evaluates"):
        svi = SVI(line, guide, numpyro.optim.Minimize(), EnsembleELBO(2))
    plain = infer.SVI(line, guide, numpyro.optim.Minimize(), infer.Trace_ELBO(2))
    ours, theirs = (one.run(jax.random.key(0), 1, X, Y, progress_bar=False).params for one in (svi, plain))
    np.testing.assert_array_equal(ours["auto_loc"], theirs["auto_loc"])


def test_sites_that_do_not_match_are_reported_as_in_numpyro():
    def guide(x, y=None):
        numpyro.sample("slope", dist.Normal(numpyro.param("loc", 0.0), 1.0))
        numpyro.sample("other", dist.Normal(0.0, 1.0))

    svi = SVI(line, guide, numpyro.optim.Adam(0.01))
    with pytest.warns(UserWarning, match="vars in model but not guide"), pytest.warns(UserWarning, match="other"):
        svi.init(jax.random.key(0), X, Y)


def test_a_guide_without_parameters_or_latents():
    def model():
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)

    svi = SVI(model, lambda: None, numpyro.optim.Adam(0.01))
    result = svi.run(jax.random.key(0), 2, progress_bar=False)
    np.testing.assert_allclose(result.losses, -dist.Normal(0.0, 1.0).log_prob(0.3), **EXACT)
    assert result.params == {}


def test_an_invalid_sample_at_the_start_stops_nothing():
    def model():
        width = numpyro.sample("width", dist.Exponential(1.0))
        numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(width)), obs=0.0)

    def guide():
        numpyro.sample("width", dist.Normal(numpyro.param("loc", 0.0), 10.0))

    svi = SVI(model, guide, numpyro.optim.Adam(1.0))
    result = svi.run(jax.random.key(0), 100, progress_bar=False, stable_update=True)
    assert jnp.isfinite(result.params["loc"])
    assert jnp.isnan(result.losses).any()
