# SPDX-License-Identifier: Apache-2.0
"""Products of blocks, by nodes for the continuous ones times enumeration for the discrete ones."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from discrete import enumerated

import quell
from exact import expectation, gauss_hermite
from quell.evaluation import Evaluation
from quell.terms import elbo
from tolerances import EXACT, EXPECTATION

MIXED = quell.Product({"weight": quell.MeanField(1, init_scale=0.7), "switch": quell.Bernoulli(2)})
SMOOTH = quell.Product({"plain": quell.MeanField(1, init_scale=0.7), "pair": quell.FullRank(2, init_scale=0.5)})


def _model():
    data = jnp.array([[0.3, -0.2, 0.9], [-0.6, 0.8, 0.1], [0.5, 0.4, -0.7]])
    return quell.Model(
        lambda z, x: jnp.sin(x @ z) - 0.5 * (x[:, 0] - z[0] * z[1]) ** 2,
        lambda z: -0.5 * jnp.sum(z**2) + 0.3 * z[0] * z[2],
        data,
        3,
    )


def _params(family):
    start = family.init(dtype=jnp.float64)
    leaves, tree = jax.tree.flatten(start)
    return jax.tree.unflatten(
        tree, [leaf + 0.2 * jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape) for leaf in leaves]
    )


def _nodes(family, params):
    """Every block's nodes times those of the others, in the order of the blocks."""
    blocks = []
    for name in family.order:
        block = family.blocks[name]
        blocks.append(gauss_hermite(block.dim) if block.transports else enumerated(block, params[name]))
    rows = [np.concatenate(some) for some in itertools.product(*(np.asarray(nodes) for nodes, _ in blocks))]
    mass = [np.prod(some) for some in itertools.product(*(np.asarray(weights) for _, weights in blocks))]
    return jnp.array(rows), jnp.array(mass)


ESTIMATORS = (
    quell.ScoreFunction(),
    quell.GeneralizedReparameterization(),
    quell.Reparameterization(),
    quell.ClosedForm(),
)


@pytest.mark.parametrize(("name", "fewest"), [("mixed", 7), ("smooth", 9)])
def test_estimators_of_a_product_are_unbiased(name, fewest):
    family = {"mixed": MIXED, "smooth": SMOOTH}[name]
    problem, params = quell.Problem(_model(), family), _params(family)
    noise, mass = _nodes(family, params)
    draw = quell.Draw(noise, None)
    taylor = quell.TaylorInLatent()
    terms = (elbo(), quell.Data(), taylor.apply(quell.Data(), None), quell.Variational())
    pairs = [(t, e) for t, e in itertools.product(terms, ESTIMATORS) if e.refuses(problem, t) is None]
    assert len(pairs) >= fewest

    @jax.jit
    def means(params):
        evaluation = Evaluation(problem, params, draw)
        return [expectation(e.estimate(evaluation, t), evaluation, mass) for t, e in pairs]

    by_term: dict[str, list] = {}
    for (term, _), mean in zip(pairs, means(params), strict=True):
        by_term.setdefault(term.name, []).append(mean)
    for first, *others in by_term.values():
        assert others, "at least two estimators agree"
        for other in others:
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **EXPECTATION), first, other)


def test_moments_and_entropy_are_those_of_the_blocks():
    params = _params(MIXED)
    parts = {name: block for name, block in MIXED.blocks.items()}
    mean = np.concatenate([parts[name].mean(params[name]) for name in ("weight", "switch")])
    np.testing.assert_allclose(MIXED.mean(params), mean, **EXACT)
    np.testing.assert_allclose(MIXED.entropy(params), sum(b.entropy(params[n]) for n, b in parts.items()), **EXACT)
    rows = jnp.eye(3)
    np.testing.assert_allclose(jnp.diag(MIXED.covariance_product(params, rows)), MIXED.variance(params), **EXACT)
    assert MIXED.num_params == 4
    assert MIXED.transports == ()
    assert SMOOTH.transports == ("joint",)
    assert (SMOOTH.is_gaussian, MIXED.is_gaussian) == (True, False)


@pytest.mark.parametrize("family", [MIXED, SMOOTH])
def test_a_fit_with_blocks_runs_with_its_defaults(family):
    sampler = quell.Sampler(num_replicates=5)
    result = quell.fit(_model(), family, sampler=sampler, steps=5, key=jax.random.key(0))
    assert result.status is quell.Status.COMPLETED
    assert result.sample(jax.random.key(1), 4).shape == (4, 3)
