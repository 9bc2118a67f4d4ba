# SPDX-License-Identifier: Apache-2.0
"""Inner products in the inverse Fisher metric, against the Hessian of the Kullback-Leibler divergence by autodiff."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import catalogue
import quell
from quell.evaluation import Evaluation
from tolerances import EXPECTATION

pytestmark = pytest.mark.slow

N, DIM = 5, 3
MODEL = quell.logistic_regression(np.random.default_rng(0).normal(size=(N, DIM)), [0, 1, 1, 0, 1])
FAMILIES = {
    "mean-field": quell.MeanField(DIM),
    "mean-field raw": quell.MeanField(DIM, log_scale=False),
    "full-rank": quell.FullRank(DIM),
    "full-rank raw": quell.FullRank(DIM, log_scale=False),
}
VARIATES = {
    "mean-field": [
        quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.Reparameterization(quell.MIRRORED)),
        quell.ControlVariate(quell.Score(), quell.ScoreFunction(), quell.ClosedForm()),
        quell.ControlVariate(quell.Variational(), quell.Reparameterization(), quell.ClosedForm()),
    ],
    "full-rank": [
        *quell.paper.variates("S7"),
        quell.ControlVariate(quell.Data(), quell.Reparameterization(), quell.Reparameterization(quell.MIRRORED)),
        quell.ControlVariate(quell.Score(), quell.ScoreFunction(quell.SYMMETRIC), quell.ClosedForm()),
    ],
}


def some_params(family, key):
    start = family.init(dtype=jnp.float64)
    moved = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(key, leaf.shape), start)
    return moved if moved.scale.ndim == 1 else moved._replace(scale=jnp.tril(moved.scale))


def fisher(family, params):
    """The Hessian of KL(q_w || q_v) at v = w, by moments of the one Gaussian and the density of the other."""
    flat, unravel = ravel_pytree(params)
    mean = family.mean(params)
    roots = jnp.linalg.cholesky(family.covariance_product(params, jnp.eye(DIM)))
    # A quadratic has its expectation on these nodes.
    nodes = jnp.concatenate([mean + jnp.sqrt(DIM) * roots.T, mean - jnp.sqrt(DIM) * roots.T])
    divergence = lambda v: -jnp.mean(jax.vmap(lambda z: family.log_prob(unravel(v), z))(nodes))  # noqa: E731
    return jax.hessian(divergence)(flat)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_inverse_of_the_fisher_matrix(name, shared, key):
    family = FAMILIES[name]
    problem, params = quell.Problem(MODEL, family), some_params(family, key)
    sampler = quell.Sampler(4, 2, shared=shared)
    gradient = quell.Gradient(
        problem, VARIATES[name.removesuffix(" raw")], sampler=sampler, rule=quell.Rule(metric="natural")
    )
    evaluation = Evaluation(problem, params, sampler.draw(key, family, N, jnp.float64))
    samples = gradient.samples(evaluation, gradient.init(params))
    inverse = jnp.linalg.pinv(fisher(family, params), hermitian=True, rcond=1e-12)  # no parameters above the diagonal
    rows = jnp.stack([jax.vmap(lambda tree: ravel_pytree(tree)[0])(evaluation.algebra.dense(s)) for s in samples])
    rows = rows.mean(axis=1, keepdims=True) if shared else rows
    truth = jnp.einsum("knp,pq,lnq->kl", rows, inverse, rows) / rows.shape[1]
    found = gradient.inner_products(evaluation, samples)
    size = jnp.sqrt(jnp.diagonal(truth))
    np.testing.assert_allclose(found / size / size[:, None], truth / size / size[:, None], **EXPECTATION)
    by_leaf = quell.Gradient(
        problem, gradient.variates, sampler=sampler, rule=quell.Rule(metric="natural", by_leaf=True)
    )
    np.testing.assert_allclose(by_leaf.inner_products(evaluation, samples).sum(axis=0), found, **EXPECTATION)


def test_it_does_not_depend_on_the_parameterisation(key):
    """The squared norm of the same gradient, with the diagonal as it is and as logarithms."""
    norms = []
    for log_scale in (True, False):
        family = quell.FullRank(DIM, log_scale=log_scale)
        params = some_params(quell.FullRank(DIM), key)
        if not log_scale:
            tril = quell.FullRank(DIM).scale_tril(params)
            params = params._replace(scale=tril)
        gradient = quell.Gradient(
            quell.Problem(MODEL, family), sampler=quell.Sampler(4, 2), rule=quell.Rule(metric="natural")
        )
        norms.append(gradient.update(key, params, gradient.init(params))[2].base_sq_norm)
    np.testing.assert_allclose(norms[0], norms[1], **EXPECTATION)


def test_other_families_are_refused_with_a_reason():
    problem = quell.Problem(MODEL, quell.families.LowRank(DIM, rank=1))
    with pytest.raises(ValueError, match=r"LowRank.*metric='euclidean'"):
        quell.Gradient(problem, rule=quell.Rule(metric="natural"))
    assert catalogue.FAMILIES["full-rank"].has_natural_metric
