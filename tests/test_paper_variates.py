# SPDX-License-Identifier: Apache-2.0
"""The paper's seven variates against formulas derived by hand, sample by sample.

For logistic regression with rows u = y x, one datum a replicate, noise e, z1 = m + L e, z2 = m + S e and s the
logistic function: a reparameterization gradient with cotangent g is (g, tril(g e')) through Cholesky.
"""

import itertools

import jax
import numpy as np
import pytest
from scipy.linalg import solve_sylvester, sqrtm

import quell
from quell.evaluation import Evaluation
from tolerances import EXPECTATION

N, D, R = 7, 4, 3
rng = np.random.default_rng(5)
X, LABELS = rng.normal(size=(N, D)), np.array([0, 1, 1, 0, 1, 0, 1])
U = np.where(LABELS > 0, 1.0, -1.0)[:, None] * X
LOC = rng.normal(size=D)
TRIL = np.tril(0.3 * rng.normal(size=(D, D))) + np.eye(D)
NOISE, INDEX = rng.normal(size=(R, D)), rng.integers(0, N, size=(R, 1))
ROOT = np.real(sqrtm(TRIL @ TRIL.T))


def sigmoid(t):
    return 1.0 / (1.0 + np.exp(-t))


def rp1(g, e):
    return g, np.tril(np.outer(g, e))


def rp2(g, e):
    """z2 = m + S e: solve S Y + Y S = sym(g e'), then the cotangent of L is 2 Y L."""
    outer = np.outer(g, e)
    y = solve_sylvester(ROOT, ROOT, (outer + outer.T) / 2)
    return g, np.tril(2 * y @ TRIL)


def minus(a, b):
    return a[0] - b[0], a[1] - b[1]


def data_grad(u, z):
    """Gradient of N log s(u'z)."""
    return N * (1 - sigmoid(u @ z)) * u


def taylor_x_grad(z, u=None):
    """Gradient in z of the expansion of N log s(u'z) in u around the mean; for all data, from the covariance."""
    center = U.mean(axis=0)
    t = center @ z
    first, second, third = 1 - sigmoid(t), -sigmoid(t) * sigmoid(-t), -sigmoid(t) * sigmoid(-t) * (1 - 2 * sigmoid(t))
    if u is None:
        spread = (U - center).T @ (U - center) / N
        return N * (first * center + 0.5 * third * (z @ spread @ z) * center + second * spread @ z)
    delta = u - center
    step = delta @ z
    slope = first * center + second * step * center + first * delta
    return N * (slope + 0.5 * third * step**2 * center + second * step * delta)


def by_hand(name, u, e):
    z1, z2 = LOC + TRIL @ e, LOC + ROOT @ e
    inverse = np.linalg.inv(TRIL)
    if name == "c1":
        return minus(rp1(-inverse.T @ e, e), (np.zeros(D), -np.diag(1 / np.diag(TRIL))))
    if name == "c2":
        return minus(rp1(-z1, e), (-LOC, -TRIL))
    if name == "c3":
        return minus(rp1(-z1, e), rp2(-z2, e))
    if name == "c4":
        return minus(rp1(data_grad(u, z1), e), rp2(data_grad(u, z2), e))
    if name == "c5":
        return rp1(taylor_x_grad(z1, u) - taylor_x_grad(z1), e)
    if name == "c6":
        return rp2(taylor_x_grad(z2, u) - taylor_x_grad(z2), e)
    t = u @ LOC
    slope, hessian = data_grad(u, LOC), -N * sigmoid(t) * sigmoid(-t) * np.outer(u, u)
    return minus(rp1(slope + hessian @ (z1 - LOC), e), (slope, np.tril(hessian @ TRIL)))


@pytest.fixture(scope="module")
def evaluation():
    problem = quell.Problem(quell.logistic_regression(X, LABELS), quell.FullRank(D, log_scale=False))
    params = quell.LocationScale(jax.numpy.asarray(LOC), jax.numpy.asarray(TRIL))
    return Evaluation(problem, params, quell.Draw(jax.numpy.asarray(NOISE), jax.numpy.asarray(INDEX)))


@pytest.mark.parametrize("name", quell.paper.VARIATES)
def test_recipe_agrees_with_the_formula(name, evaluation):
    variate = quell.paper.VARIATES[name]
    parts = variate.sample(evaluation, variate.init(evaluation.problem))
    dense = evaluation.algebra.dense(parts)
    for r in range(R):
        loc, scale = by_hand(name, U[INDEX[r, 0]], NOISE[r])
        np.testing.assert_allclose(dense.loc[r], loc, **EXPECTATION)
        np.testing.assert_allclose(dense.scale[r], scale, **EXPECTATION)
        assert np.abs(loc).max() > 1e-3


def test_subsets_grow_as_in_the_paper():
    names = [tuple(v.name for v in quell.paper.variates(s)) for s in ("none", "S4", "S5", "S6", "S7")]
    assert names[0] == ()
    assert names[1] == ("c2", "c1", "c3", "c4")
    for small, large in itertools.pairwise(names[1:]):
        assert large[: len(small)] == small
    assert set(names[-1]) == {"c1", "c2", "c3", "c4", "c5", "c6", "c7"}
