# SPDX-License-Identifier: Apache-2.0
"""Any log density as a model: its Jacobians against autodiff, its fits against what is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints as numpyro_constraints

import quell
import tolerances

SHAPES = {"positive": (), "unit interval": (2,), "ordered": (3,)}


def flat(z):
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(z)])


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_the_jacobian_of_a_constraint_is_that_of_autodiff(name, shape):
    model = quell.from_log_density(lambda z: jnp.zeros(()), {"a": jnp.ones(shape)}, constraints={"a": name})
    z = jnp.asarray(np.random.default_rng(0).normal(size=model.dim))
    _, expected = jnp.linalg.slogdet(jax.jacobian(lambda z: flat(model.constrain(z)))(z))
    np.testing.assert_allclose(model.log_joint(z), expected, **tolerances.EXACT)


def test_a_simplex_has_one_coordinate_less_and_its_moments():
    """The density of a Dirichlet distribution has a normalising constant, which the ELBO approaches from below."""
    counts = jnp.array([30.0, 50.0, 20.0])
    model = quell.from_log_density(
        lambda z: jnp.sum((counts - 1) * jnp.log(z["p"])), {"p": jnp.ones(3) / 3}, constraints={"p": "simplex"}
    )
    assert model.dim == 2
    result = quell.fit(model, key=jax.random.key(0))
    assert result.status is quell.Status.CONVERGED
    draws = result.sample(jax.random.key(1), 20_000)["p"]
    np.testing.assert_allclose(draws.sum(axis=1), 1.0, **tolerances.EXACT)
    np.testing.assert_allclose(draws.mean(axis=0), counts / 100, atol=0.003)
    exact = float(jnp.sum(jax.scipy.special.gammaln(counts)) - jax.scipy.special.gammaln(100.0))
    assert exact - 0.05 < result.final_elbo.value < exact


def test_a_density_and_the_same_model_have_the_same_fit(key):
    data = jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, size=20))
    density = quell.from_log_density(
        lambda z: jnp.sum(-0.5 * (data - z) ** 2 - 0.5 * jnp.log(2 * jnp.pi)) + quell.NormalPrior().log_prob(z), 1
    )
    model = quell.Model(
        lambda z, x: -0.5 * (x - z[0]) ** 2 - 0.5 * jnp.log(2 * jnp.pi), quell.NormalPrior(), data, latent=1
    )
    one, other = (quell.fit(each, key=key) for each in (density, model))
    np.testing.assert_allclose(one.final_elbo.value, other.final_elbo.value, rtol=1e-6)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)


def test_a_constraint_of_numpyro_and_a_name_are_the_same():
    made = [
        quell.from_log_density(lambda z: -z["a"], {"a": 1.0}, constraints={"a": one})
        for one in ("positive", numpyro_constraints.positive)
    ]
    z = jnp.array([0.3])
    np.testing.assert_array_equal(made[0].log_joint(z), made[1].log_joint(z))


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: quell.from_log_density(lambda z: z, 3), TypeError, "must return a scalar"),
        (
            lambda: quell.from_log_density(lambda z: z["a"], {"a": 0.0}, constraints={"b": "positive"}),
            ValueError,
            "got 'b'",
        ),
        (
            lambda: quell.from_log_density(lambda z: z["a"], {"a": 0.0}, constraints={"a": "large"}),
            ValueError,
            "'unit interval'",
        ),
        (lambda: quell.from_log_density(lambda z: jnp.sum(z), 0), ValueError, "latent"),
        (lambda: quell.from_log_density(lambda z: 0.0, {}), ValueError, "at least one leaf"),
        (
            lambda: quell.from_log_density(lambda z: z["a"], {"a": 0.0}, constraints={"a": 5}),
            TypeError,
            "or NumPyro's, got 5",
        ),
        (
            lambda: quell.from_log_density(lambda z: z["a"], {"a": 0.0}, constraints={"a": "simplex"}),
            ValueError,
            "of shape",
        ),
    ],
)
def test_bad_input_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
