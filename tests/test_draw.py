# SPDX-License-Identifier: Apache-2.0
"""Draws: shapes, distinct rows, and every subset equally often."""

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import tolerances
from quell import FullRank, MeanField, Sampler
from quell.evaluation import draw

FAMILY = MeanField(3)


_compiled = eqx.filter_jit(Sampler.draw)


def _draw(sampler, key, num_data):
    return _compiled(sampler, key, FAMILY, num_data, jnp.dtype(float))


def _shapes(sampler, key, num_data, *, family=FAMILY, dtype=float):
    return eqx.filter_eval_shape(sampler.draw, key, family, num_data, jnp.dtype(dtype))


@pytest.mark.parametrize(
    ("sampler", "shape", "is_shared", "num_units"),
    [
        (Sampler(), None, False, 1),
        (Sampler(10), None, False, 10),
        (Sampler(10, shared=True), None, False, 10),
        (Sampler(10, 1), (10, 1), False, 10),
        (Sampler(1, 4), (1, 4), False, 1),
        (Sampler(6, 4), (6, 4), False, 6),
        (Sampler(6, 4, shared=True), (4,), True, 1),
        (Sampler(6, 4, replace=True), (6, 4), False, 6),
        (Sampler(6, 4, shared=True, replace=True), (4,), True, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("num_data", [5, 100])
def test_shapes_and_independent_units(sampler, shape, is_shared, num_units, num_data, key):
    draw = _shapes(sampler, key, num_data)
    assert draw.noise.shape == (sampler.num_replicates, 3)
    assert (None if draw.index is None else draw.index.shape) == shape
    assert draw.is_shared == is_shared
    assert sampler.num_units == num_units


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("family", [MeanField(2), FullRank(4)], ids=repr)
def test_noise_has_the_size_of_the_family_and_the_dtype_asked_for(family, dtype, key):
    draw = _shapes(Sampler(5, 2), key, 9, family=family, dtype=dtype)
    assert draw.noise.shape == (5, family.dim)
    assert draw.noise.dtype == dtype


@pytest.mark.parametrize("sampler", [Sampler(8, 3), Sampler(8, 5), Sampler(8, 3, replace=True)], ids=str)
def test_a_draw_is_a_function_of_the_key(sampler, key):
    once, again = _draw(sampler, key, 10), _draw(sampler, key, 10)
    eager = sampler.draw(key, FAMILY, 10, jnp.dtype(float))
    other = _draw(sampler, jax.random.key(1), 10)
    for name in ("noise", "index"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))
        np.testing.assert_array_equal(getattr(once, name), getattr(eager, name))
        assert (getattr(once, name) != getattr(other, name)).any()
    assert len({tuple(row) for row in once.index.tolist()}) > 1, "each replicate has a minibatch of its own"
    assert len(set(once.noise.ravel().tolist())) == once.noise.size, "each replicate has noise of its own"


@pytest.mark.parametrize(("num_data", "size"), [(100, 10), (6, 6), (40, 38)])
@pytest.mark.parametrize("shared", [False, True])
def test_without_replacement_the_rows_of_a_minibatch_differ(num_data, size, shared, key):
    index = np.atleast_2d(_draw(Sampler(300, size, shared=shared), key, num_data).index)
    assert all(len(set(row)) == size for row in index.tolist())
    assert set(index.ravel().tolist()) <= set(range(num_data))


@pytest.mark.parametrize(("num_data", "size"), [(5, 2), (9, 3), (16, 4)])
def test_small_subsets_are_exactly_uniform(num_data, size):
    """Floyd's algorithm on all values that its random integers can take: every subset equally often."""
    tops = jnp.arange(num_data - size, num_data, dtype=jnp.int32)
    every = jnp.array(list(itertools.product(*(range(int(top) + 1) for top in tops))), jnp.int32)
    _, counts = np.unique(np.sort(draw._one_by_one(every, tops), axis=1), axis=0, return_counts=True)
    num_subsets = math.comb(num_data, size)
    np.testing.assert_array_equal(counts, [math.perm(num_data, size) // num_subsets] * num_subsets)


@pytest.mark.parametrize("limit", [1, 2, 3, 690, 65_535, 65_537, 10**6, 2**24, 10**9, 2**31 - 1])
def test_integers_are_remainders_of_all_64_bits(limit, key):
    keys = jax.random.split(key, 500).reshape(5, 100)
    words = np.asarray(jax.random.key_data(keys)).astype(object)
    expected = (words[..., 0] * 2**32 + words[..., 1]) % limit
    np.testing.assert_array_equal(draw._integers(keys, jnp.asarray(limit), limit), expected.astype(np.int64))
    smaller = jnp.asarray([1 + limit // 2] * 100)
    expected = (words[..., 0] * 2**32 + words[..., 1]) % int(smaller[0])
    np.testing.assert_array_equal(draw._integers(keys, smaller, limit), expected.astype(np.int64))


@pytest.mark.parametrize(("num_data", "size"), [(5, 4), (3, 3), (10, 7), (100, 40)])
def test_a_device_that_does_much_at_once_draws_the_same(num_data, size):
    rng = np.random.default_rng(num_data)
    tops = jnp.arange(num_data - size, num_data, dtype=jnp.int32)
    picks = jnp.asarray(rng.integers(0, np.asarray(tops) + 1, size=(100, size)), jnp.int32)
    one, many = draw._one_by_one(picks, tops), draw._all_at_once(picks, tops)
    np.testing.assert_array_equal(many, one)
    assert (np.asarray(one) != np.asarray(picks)).any()


def _deviation(outcomes, num_outcomes):
    """Pearson's chi-square against uniformity, as the normal deviate with the same tail."""
    counts = np.unique(outcomes, axis=0, return_counts=True)[1]
    expected = np.full(num_outcomes, len(outcomes) / num_outcomes)
    return scipy.stats.norm.isf(scipy.stats.chisquare(np.pad(counts, (0, num_outcomes - len(counts))), expected).pvalue)


def _left_out(index):
    """The one of 34 data that a minibatch of 33 lacks."""
    return 33 * 34 // 2 - index.sum(axis=1, keepdims=True)


UNIFORM = {
    "Floyd": (Sampler(20_000, 2), 5, np.sort, math.comb(5, 2)),
    "Floyd, most of the data": (Sampler(20_000, 3), 5, np.sort, math.comb(5, 3)),
    "sort": (Sampler(20_000, 33), 34, _left_out, 34),
    "replace": (Sampler(20_000, 2, replace=True), 5, np.asarray, 5**2),
    "one": (Sampler(20_000, 1), 5, np.asarray, 5),
}


@pytest.mark.parametrize(("sampler", "num_data", "outcome", "num_outcomes"), UNIFORM.values(), ids=UNIFORM.keys())
def test_minibatches_look_uniform(sampler, num_data, outcome, num_outcomes, key):
    """With the real random numbers. A false alarm in 3.5 million keys; the key is fixed."""
    outcomes = outcome(np.asarray(_draw(sampler, key, num_data).index))
    assert _deviation(outcomes, num_outcomes) < tolerances.STANDARD_ERRORS
    first = np.all(outcomes == outcomes[0], axis=-1)
    planted = np.where((first & (np.arange(len(outcomes)) % 4 == 0))[:, None], outcomes[~first][0], outcomes)
    assert _deviation(planted, num_outcomes) > tolerances.STANDARD_ERRORS, "a quarter of one outcome was moved"


def test_a_minibatch_of_all_data_is_not_the_full_data(key):
    """It is a random order with an index, and `batch_size=None` is the way to skip the gather."""
    assert sorted(_draw(Sampler(1, 5), key, 5).index[0].tolist()) == [0, 1, 2, 3, 4]
