# SPDX-License-Identifier: Apache-2.0
"""The symmetric square root and its derivative, also where eigenvalues meet."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import sqrtm

from quell.families.symmetric_root import SymmetricRoot
from tolerances import DIFFERENCES, EXACT, SINGLE_SMALL

rng = np.random.default_rng(3)
SCALES = {
    "general": np.tril(rng.normal(size=(4, 4))) + 2 * np.eye(4),
    "identity": np.eye(4),
    "repeated": np.diag([2.0, 2.0, 0.5, 0.5]),
    "negative diagonal": np.tril(rng.normal(size=(4, 4))) - 2 * np.eye(4),
}


@pytest.mark.parametrize("name", SCALES)
def test_root_and_its_inverse(name):
    tril = SCALES[name]
    root, rows = SymmetricRoot.from_tril(jnp.asarray(tril)), rng.normal(size=(3, 4))
    truth = np.real(sqrtm(tril @ tril.T))
    np.testing.assert_allclose(root.apply(jnp.asarray(rows)), rows @ truth, **EXACT)
    np.testing.assert_allclose(root.solve(jnp.asarray(rows)), rows @ np.linalg.inv(truth), **EXACT)


@pytest.mark.parametrize("name", SCALES)
def test_pullback_is_the_derivative(name):
    tril, g, e = SCALES[name], rng.normal(size=4), rng.normal(size=4)
    root = SymmetricRoot.from_tril(jnp.asarray(tril))
    pulled = root.pullback(jnp.outer(g @ root.basis, e @ root.basis))
    rows = root.pullback_rows(jnp.asarray(g)[None], jnp.asarray(e)[None])[0]
    np.testing.assert_allclose(pulled, rows, **EXACT)
    step = 1e-5
    for i in range(4):
        for j in range(4):
            moved = np.zeros((4, 4))
            moved[i, j] = step
            ahead, behind = tril + moved, tril - moved
            change = (np.real(sqrtm(ahead @ ahead.T)) - np.real(sqrtm(behind @ behind.T))) / (2 * step)
            np.testing.assert_allclose(pulled[i, j], g @ change @ e, **DIFFERENCES)


def test_small_values_keep_their_digits_in_single_precision():
    tril = np.diag([1.0, 1e-4]).astype(np.float32)
    tril[1, 0] = 0.5
    truth = np.linalg.svd(tril.astype(np.float64), compute_uv=False).min()
    root = SymmetricRoot.from_tril(jnp.asarray(tril))
    np.testing.assert_allclose(np.min(root.values), truth, **SINGLE_SMALL)
