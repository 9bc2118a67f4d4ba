# SPDX-License-Identifier: Apache-2.0
"""A family that offers sampling and a log density and nothing else: what works, and what the rest says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import catalogue
import quell

MODEL = catalogue.MODELS["function"]
FAMILY = catalogue.ShiftedLogNormal(2)
RP = quell.Reparameterization()


def test_it_is_fitted_with_the_path_gradient_and_a_sampled_entropy(key):
    result = quell.fit(MODEL, FAMILY, key=key, steps=400)
    assert result.status is quell.Status.COMPLETED
    assert result.gradient.base == quell.BaseGradient(RP, RP, RP)
    start = quell.diagnostics.estimate_elbo(key, result.problem, FAMILY.init(dtype=jnp.float64))
    assert result.elbo().value > start.value + 1.0
    draws = result.sample_flat(key, 2000)
    np.testing.assert_allclose(result.summary().as_dict()["a"]["mean"], draws[:, 0].mean(), atol=0.1)


def test_the_fit_is_that_of_quadrature(key):
    """Against the best parameters of the exact ELBO, by BFGS on the catalogue's quadrature."""
    noise = catalogue.FAMILIES["sampling and density"].noise
    nodes, mass = jnp.asarray(noise.nodes), jnp.asarray(noise.weights)
    flat, unravel = jax.flatten_util.ravel_pytree(FAMILY.init(dtype=jnp.float64))

    def elbo(w):
        latents = jax.vmap(lambda row: FAMILY.sample(unravel(w), row))(nodes)
        log_p = jax.vmap(lambda z: MODEL.log_likelihood(z, MODEL.data).sum() + MODEL.prior.log_prob(z))(latents)
        return mass @ (log_p - jax.vmap(lambda z: FAMILY.log_prob(unravel(w), z))(latents))

    best = scipy.optimize.minimize(jax.jit(jax.value_and_grad(lambda w: -elbo(w))), flat, jac=True, method="BFGS").x
    result = quell.fit(MODEL, FAMILY, key=key, steps=2000, sampler=quell.Sampler(20))
    found = jax.flatten_util.ravel_pytree(result.params)[0]
    assert float(elbo(best) - elbo(found)) < 0.02
    assert float(elbo(best) - elbo(flat)) > 1.0, "the start is worse"


@pytest.mark.slow
def test_the_variates_that_remain_and_why_the_others_do_not():
    found = quell.catalogue(MODEL, FAMILY)
    formulas = {entry.variate.formula for entry in found.valid}
    assert {"data: rp - sf", "score: sf - cf", "taylor-x(data): rp - rp[all]", "variational: rp - sf"} <= formulas
    reasons = {refused.variate.formula: refused.reason for refused in found.invalid}
    assert reasons["variational: rp - cf"] == "ShiftedLogNormal has no entropy in closed form"
    assert reasons["taylor-z(data): rp - cf"] == "ShiftedLogNormal has no moments in closed form"
    assert reasons["data: rp - gr"] == "ShiftedLogNormal has no generalized reparameterization"
    assert reasons["data: rp - rpt"] == "ShiftedLogNormal has no triangular scale matrix"
    assert reasons["data: rp - price"] == "ShiftedLogNormal has no Gaussian linear functions of its latent"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda problem: quell.natural_gradient(problem), "Fisher geometry"),
        (
            lambda problem: quell.Gradient(
                problem, base=quell.default_base(problem), rule=quell.Rule(metric="natural")
            ),
            "inverse Fisher metric",
        ),
        (lambda problem: quell.Gradient(problem), "entropy in closed form"),
        (lambda problem: quell.exact_elbo(problem, FAMILY.init()), "Gaussian family"),
    ],
    ids=["natural gradient", "natural metric", "exact entropy", "exact ELBO"],
)
def test_what_needs_more_is_refused_in_words(make, reason):
    with pytest.raises((ValueError, TypeError), match=reason):
        make(quell.Problem(MODEL, FAMILY))
