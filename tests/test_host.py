# SPDX-License-Identifier: Apache-2.0
"""JAX programs by NumPy: the same results as compiled, whatever the program."""

import functools
import gc
import importlib
import math
import weakref

import jax
import jax.numpy as jnp
import jax.scipy.special as jss
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import sample

import quell
from quell.core import compilation, tiers
from quell.core.host import HostProgram, TooLong, Unsupported, compiled_part, parts, remembered_part, remembering
from quell.core.put import put
from quell.core.tiers import TieredProgram, tiered_jit, tiered_once
from quell.evaluation import node_sum
from quell.evaluation.problem import exactly
from quell.fit.common_draws import ExactElbo
from quell.fit.common_noise import Draws

driver = importlib.import_module("quell.fit.driver")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3))
POSITIVE = np.abs(X) + 0.1
SPD = np.stack([X[:3].T @ X[:3] + np.eye(3), 2.0 * np.eye(3)])
INDEX = np.array([2, 0, 7, -1, 3])
KEY = jax.random.key(7)

UNARY = (
    "negative abs sign floor ceil exp expm1 log1p sin cos tan sinh cosh tanh arcsinh arctan square isfinite exp2 cbrt"
)

CASES = {
    **{name: (getattr(jnp, name), X) for name in UNARY.split()},
    **{name: (getattr(jnp, name), POSITIVE) for name in ("log", "sqrt", "reciprocal")},
    **{name: (getattr(jnp, name), np.tanh(X)) for name in ("arcsin", "arccos", "arctanh")},
    "arccosh": (jnp.arccosh, 1 + POSITIVE),
    "round": (jnp.round, 3 * X),
    "tile": (lambda x: jnp.tile(x, (2, 3)), X),
    "rsqrt": (lax.rsqrt, POSITIVE),
    "erf": (lax.erf, X),
    "erfc": (lax.erfc, X),
    "erf_inv": (lax.erf_inv, np.tanh(X)),
    "gammaln": (jss.gammaln, POSITIVE),
    "digamma": (jss.digamma, POSITIVE),
    "igamma": (jss.gammainc, POSITIVE, POSITIVE[::-1]),
    "betainc": (jss.betainc, POSITIVE, POSITIVE[::-1], 0.5 * np.tanh(POSITIVE)),
    "i0e": (jss.i0e, X),
    "logsumexp": (lambda x: jss.logsumexp(x, axis=0), X),
    "sigmoid": (jax.nn.sigmoid, 100 * X),
    "softplus": (jax.nn.softplus, 100 * X),
    "power": (jnp.power, POSITIVE, X),
    "integer powers": (lambda x: (x**3, x**-2, x**0), X),
    "remainder": (lambda x, y: (jnp.remainder(x, y), lax.rem(x, y)), X, POSITIVE),
    "large integers divided": (lambda n: n // 3, np.array([2**62 + 1, -(2**62) - 5])),
    "floats to integers": (lambda x: x.astype(jnp.int32), np.array([np.nan, np.inf, -np.inf, 3e9, -2.7, 2.7])),
    "powers of integers": (lambda x, n: jnp.power(x, n), POSITIVE.astype(np.float32), np.arange(3)),
    "integers divided": (lambda n: (n // 3, lax.div(n, -2), n % 3), np.arange(-4, 5)),
    "compared": (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y, jnp.maximum(x, y)), X, X[::-1]),
    "bits": (lambda n: (n & 3, n | 8, n ^ 5, ~n, n << 2, n >> 1, lax.shift_right_logical(n, 31)), np.arange(-4, 5)),
    "atan2": (jnp.arctan2, X, X[::-1]),
    "nextafter": (jnp.nextafter, X, X[::-1]),
    "clipped": (lambda x: jnp.clip(x, -0.5, 0.5), X),
    "where": (lambda x: jnp.where(x > 0, x, 2.0), X),
    "chosen": (lambda n, x: lax.select_n(n, x, 2 * x, 3 * x), np.array([0, 1, 2, 1]), X[:, 0]),
    "cast": (
        lambda x: (x.astype(int), x.astype(bool), x.astype(jnp.float32), lax.bitcast_convert_type(x, jnp.uint64)),
        X,
    ),
    "shapes": (lambda x: (x.T, x[:, None], x.reshape(2, 6), x[::2, 1:], x[::-1], jnp.squeeze(x[:1])), X),
    "joined": (lambda x: (jnp.concatenate([x, x], 1), jnp.stack([x, x], 1), jnp.split(x, 2), jnp.unstack(x)), X),
    "padded": (lambda x: (lax.pad(x, 1.5, [(1, 2, 0), (0, 1, 1)]), lax.pad(x, 0.0, [(-1, 2, 1), (-2, -1, 2)])), X),
    "cut": (lambda x: (lax.pad(x, 0.0, [(-1, -2, 0), (0, 0, 0)]), lax.pad(x, 0.0, [(-4, 9, 0), (0, 0, 0)])), X),
    "summed": (
        lambda x: (x.sum(), x.sum(0), x.prod(1), x.max(0), x.min(), (x > 0).all(0), (x > 0).any(), (x > 0).sum()),
        X,
    ),
    "short rows": (
        lambda x: [
            (x[:, :k].sum(1), x[:, :k].max(1), x[:, :k].prod(1), (x[:, :k] > 0).all(1), (x[:, :k] > 0).any(1))
            for k in (1, 3, 9)
        ],
        np.random.default_rng(0).normal(size=(200, 9)),
    ),
    "extremes": (lambda x: (jnp.argmax(x), jnp.argmin(x, 1)), X),
    "cumulated": (lambda x: (jnp.cumsum(x, 0), lax.cumprod(x, 1, reverse=True), lax.cummax(x), lax.cumlogsumexp(x)), X),
    "sorted": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.sort([x[:, 0] > 0, x[:, 1]], num_keys=2)), X),
    "products": (lambda x: (x @ x.T, x.T @ x, jnp.tensordot(x, x, 2), jnp.einsum("ij,ij->i", x, x), x @ x[0]), X),
    "batched products": (lambda a: (a @ a, jnp.einsum("bij,bkj->kbi", a, a)), SPD),
    "integer products": (lambda n: n @ n.T, np.arange(6).reshape(2, 3)),
    "iota": (lambda x: (jnp.arange(5), lax.broadcasted_iota(float, (2, 3), 1), jnp.eye(3), jnp.tril(x)), X),
    "gathered": (lambda x, n: (x[n], x[:, n % 3], x[n % 4, n % 3], x.at[n].get(mode="fill", fill_value=9.0)), X, INDEX),
    "gathered and clipped": (lambda x, n: x.at[n].get(mode="clip"), X, INDEX),
    "taken along": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), X),
    "gathered in a batch": (jax.vmap(lambda x, n: x[n]), X, INDEX[:4] % 3),
    "scattered": (lambda x, n: (x.at[n].add(1.0), x.at[n].set(7.0), x.at[n % 4, n % 3].mul(2.0)), X, INDEX),
    "scattered and clipped": (lambda x, n: x.at[n].add(1.0, mode="clip"), X, INDEX),
    "scattered extremes": (lambda x, n: (x.at[n].max(0.0), x.at[:, n % 3].min(0.0)), X, INDEX),
    "scattered in a batch": (jax.vmap(lambda x, n: x.at[n].add(2.0)), X, INDEX[:4] % 3),
    "transposed gather": (jax.grad(lambda x, n: jnp.sum(jnp.sin(x[n % 4]) * n[:, None])), X, INDEX),
    "dynamic": (lambda x, n: (lax.dynamic_slice(x, (n, 1), (2, 2)), x.at[n].set(0.0)), X, np.array(3)),
    "updated": (lambda x, n: lax.dynamic_update_slice(x, jnp.ones((2, 2)), (n, n)), X, np.array(3)),
    "cholesky": (jnp.linalg.cholesky, SPD),
    "not positive": (jnp.linalg.cholesky, np.stack([SPD[0], -SPD[1]])),
    "triangular": (
        lambda a, x: [
            lax.linalg.triangular_solve(
                a[0], x if left else x.T, left_side=left, lower=lower, transpose_a=turned, unit_diagonal=unit
            )
            for left in (True, False)
            for lower in (True, False)
            for turned in (True, False)
            for unit in (True, False)
        ],
        SPD,
        X[:3],
    ),
    "triangular, one of them singular": (
        lambda a, x: lax.linalg.triangular_solve(a, jnp.stack([x, x]), left_side=True, lower=True),
        np.stack([SPD[0], np.diag([1.0, 0.0, 2.0])]),
        X[:3],
    ),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), X),
    "eigh": (lambda a: jnp.linalg.eigh(a)[0], SPD),
    "slope of cholesky": (jax.grad(lambda a: jnp.sum(jnp.linalg.cholesky(a @ a.T))), SPD[0]),
    "random": (lambda k: (jax.random.normal(k, (5,)), jax.random.uniform(k), jax.random.bits(k, (3,), "uint32")), KEY),
    "random keys": (
        lambda k: [jax.random.key_data(one) for one in (jax.random.fold_in(k, 3), *jax.random.split(k, 3))],
        KEY,
    ),
    "keys of keys": (jax.vmap(lambda k: jax.random.normal(jax.random.split(k)[1], (2, 2))), jax.random.split(KEY, 3)),
    "seeded": (lambda n: jax.random.normal(jax.random.key(n)), np.array(11)),
    "permuted": (lambda k: jax.random.permutation(k, 6), KEY),
    "while": (lambda x: lax.while_loop(lambda c: c[1] < 5, lambda c: (c[0] * x.sum(), c[1] + 1), (x, 0)), X),
    "while in a batch": (
        jax.vmap(lambda x: lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] * 1.5 + 1, c[1] + x), (x[0], x))),
        X,
    ),
    "scan": (lambda x: lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(3), x, reverse=True), X),
    "map": (lambda x: lax.map(jnp.sum, x, batch_size=3), X),
    "kept in order": (lambda x: lax.optimization_barrier(x) + jax.device_put(np.ones(3)), X),
    "slopes of a scan": (
        jax.jacfwd(jax.grad(lambda x: lax.scan(lambda c, row: (jnp.sin(c * x) + row, c), x, jnp.outer(x, x))[1].sum())),
        X[0],
    ),
    "cond": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), X),
    "switch": (lambda x, n: lax.switch(n, [jnp.sin, jnp.cos, jnp.tan], x), X, np.array(5)),
    "checkpoint": (jax.grad(jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.exp(x))))), X),
    "second derivatives": (jax.hessian(lambda x: jnp.sum(jax.nn.softplus(x) ** 2)), X[0]),
    "of platforms": (
        lambda x: lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos),
        X,
    ),
}
"""A function with arguments, for each primitive that has a rule, and for what JAX makes of derivatives and batches."""


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_compiled_program(name):
    function, *arguments = CASES[name]
    arguments = [jnp.asarray(one) for one in arguments]
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    expected, found = jax.tree.leaves(jax.jit(function)(*arguments)), HostProgram(closed)(*arguments)
    assert len(found) == len(expected) == len(jax.tree.leaves(shape))
    for one, other in zip(found, expected, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["sigmoid", "gammaln", "products", "random", "gathered", "while", "cumulated"])
def test_single_precision_stays_single(name):
    function, *arguments = CASES[name]
    arguments = [one.astype(np.float32) if getattr(one, "dtype", None) == np.float64 else one for one in arguments]
    closed = jax.make_jaxpr(function)(*arguments)
    for one, var in zip(HostProgram(closed)(*arguments), closed.jaxpr.outvars, strict=True):
        assert one.dtype == var.aval.dtype


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), x.dtype), x), "pure_callback"),
        (lambda x: jax.random.split(jax.random.key(0)), "random key"),
        (lambda x: x.astype(jnp.bfloat16) + 1, "convert_element_type"),
        (lambda x: jnp.stack([x, x]).at[0].apply(jnp.cos), "computed"),
    ],
)
def test_what_numpy_cannot_do_is_left_to_the_compiler(function, what):
    with pytest.raises(Unsupported, match=what):
        HostProgram(jax.make_jaxpr(function)(1.0))
    compiled = jax.tree.leaves(tiered_jit(function)(jnp.asarray(1.0)))
    assert all(map(jnp.array_equal, compiled, jax.tree.leaves(jax.jit(function)(1.0))))


def test_arrays_of_numpy_are_arguments_and_the_rest_is_static(monkeypatch):
    def compiled(function):
        pytest.fail("a small program was compiled")

    monkeypatch.setattr(tiers, "quick_jit", lambda function: compiled)
    traced = []

    def function(x, name):
        traced.append(name)
        return x + 1, name

    run = tiered_jit(function)
    for x in (np.zeros(2), np.ones(2), jnp.zeros(2, jnp.asarray(np.zeros(2)).dtype)):
        found, name = run(x, "a")
        np.testing.assert_array_equal(found, x + 1)
        assert name == "a"
    run(np.zeros(2), "b")
    assert traced == ["a", "b"]


def test_what_is_written_to_an_array_later_is_not_seen():
    """`jax.device_put` may share memory, by where that happens to lie: with one of many arrays it would."""
    for _ in range(50):
        given = np.zeros(1000, np.float32)
        kept, same = put(given), tiered_jit(lambda x: x)(given)
        given[:] = 1
        assert not np.any(kept)
        assert not np.any(same)


def test_random_bits_of_another_kind_are_those_of_jax():
    with jax.threefry_partitionable(False):
        draw = tiered_jit(lambda key: jax.random.normal(key, (3,)))
        np.testing.assert_allclose(draw(jax.random.key(7)), jax.random.normal(jax.random.key(7), (3,)), rtol=1e-6)


def test_zeros_of_either_sign_are_two_programs():
    run = tiered_jit(lambda x, zero: x / zero)
    assert run(jnp.ones(()), 0.0) == jnp.inf
    assert run(jnp.ones(()), -0.0) == -jnp.inf


def test_what_numpy_refuses_on_the_way_is_left_to_the_compiler():
    run = tiered_jit(lambda a: jnp.linalg.eigh(a)[0])
    assert np.isnan(run(jnp.full((2, 2), jnp.nan))).all()
    np.testing.assert_allclose(run(jnp.eye(2)), 1.0)


def test_a_badly_scaled_triangle_is_solved_to_the_last_digits():
    a, b = np.tril(np.ones((3, 3))) * np.array([1e-8, 1.0, 1e8])[:, None], np.ones((3, 1))
    closed = jax.make_jaxpr(lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True))(a, b)
    exact = [1e8, 1.0 - 1e8, 1e-8 - 1.0]
    np.testing.assert_allclose(HostProgram(closed)(a, b)[0][:, 0], exact, rtol=1e-14)


def test_products_of_matrices_are_expected_to_be_cheap():
    """By the multiplication: a library takes them, many at a time."""
    a = np.ones((100, 100))
    closed = [jax.make_jaxpr(one)(a) for one in (lambda a: a @ a, lambda a: a[:, :, None] * a)]
    product, elements = (HostProgram(one).expected_work for one in closed)
    assert product < 0.2 * elements


def test_effects_are_kept():
    seen = []
    tiered_jit(lambda x: jax.debug.callback(seen.append, x))(jnp.asarray(2.0))
    jax.effects_barrier()
    assert [float(one) for one in seen] == [2.0]


def test_a_program_is_compiled_when_its_runs_have_taken_as_long_as_that(monkeypatch):
    program = TieredProgram(lambda x: jnp.sin(x) + 1, ((((3,)), np.dtype(float), False),))
    x = jnp.arange(3.0)
    runs = 0
    while program.host is not None:
        np.testing.assert_allclose(program([x]), jnp.sin(x) + 1, rtol=1e-15)
        runs += 1
    assert 10 < runs < 10_000
    np.testing.assert_allclose(program([x]), jnp.sin(x) + 1, rtol=1e-15)


def test_a_long_loop_is_compiled_at_once():
    def function(x):
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=100_000)[0]

    program = TieredProgram(function, (((), np.dtype(float), False),))
    program([jnp.asarray(1.0)])
    assert program.host is None


def test_a_loop_that_is_longer_than_expected_is_compiled_on_the_way():
    program = TieredProgram(
        lambda x: lax.while_loop(lambda c: c < 1e6, lambda c: c + 1.0, x), (((), np.dtype(float), False),)
    )
    assert float(program([jnp.asarray(0.0)])) == 1e6
    assert program.host is None


@compiled_part
def long_part(x, data):
    """Too long for NumPy."""
    return lax.scan(lambda c, _: (c + 1e-5 * jnp.sin(c) + jnp.sum(data), None), x, length=50_000)[0]


def test_a_part_that_is_too_long_is_compiled_by_itself_once():
    """For all calls of it; the loop around it stays with NumPy, and so does a derivative of its results."""

    def function(x, data):
        def body(number, total):
            return total + long_part(x + number, data)

        there = lax.fori_loop(0, 3, body, jnp.zeros_like(x))
        return jnp.cos(there) + long_part(x, data)

    kinds = (((2,), np.dtype(float), False), ((5,), np.dtype(float), False))
    program, arguments = TieredProgram(function, kinds), [put([0.1, 0.2]), put(1e-3 * np.arange(5.0))]
    np.testing.assert_allclose(program(arguments), jax.jit(function)(*arguments), rtol=1e-12)
    assert program.host is not None
    assert program.host.with_parts
    assert len(program.host.parts) == 1
    assert "compiled" not in program.__dict__


def test_parts_of_few_operations_are_run_by_numpy():
    small = compiled_part(lambda x: jnp.sin(x) + 1)
    program = TieredProgram(lambda x: small(x), (((2,), np.dtype(float), False),))
    np.testing.assert_allclose(program([put([0.1, 0.2])]), np.sin([0.1, 0.2]) + 1, rtol=1e-14)
    assert program.host is not None
    assert not program.host.parts


def test_parts_have_derivatives():
    x, data = put([0.1, 0.2]), put(1e-3 * np.arange(5.0))
    plain = long_part.__wrapped__

    def slope(function, x):
        return jax.jvp(lambda y: function(y, data), (x,), (x,))[1]

    program = HostProgram(jax.make_jaxpr(functools.partial(slope, long_part))(x), with_parts=True)
    np.testing.assert_allclose(program(x)[0], slope(plain, x), rtol=1e-12)
    assert len(program.parts) == 1


def test_data_of_a_part_may_change_between_calls():
    """They are sent to the device once, as long as they are the same."""
    closed = jax.make_jaxpr(long_part)(put([0.1]), put(np.arange(5.0)))
    program, x = HostProgram(closed, with_parts=True), np.array([0.1])
    for scale in (1e-3, 1e-3, 2e-3):
        data = scale * np.arange(5.0)
        np.testing.assert_allclose(program(x, data)[0], jax.jit(long_part)(x, data), rtol=1e-12)


def test_data_that_a_part_returns_are_passed_on(monkeypatch):
    """Beside what it computes of them, as a linearised function does; a copy would be all of the data."""
    compiled, quick = [], parts.quick_program
    monkeypatch.setattr(parts, "quick_program", lambda closed: compiled.append(closed) or quick(closed))
    one = compiled_part(lambda x, data: (data, jnp.sin(x) * jnp.sum(data), x))
    program = HostProgram(jax.make_jaxpr(lambda x, data: one(2 * x, data))(0.1, np.arange(5.0)), with_parts=True)
    for x, data in ((0.1, put(np.arange(5.0))), (0.2, put(np.ones(5)))):
        found = program(np.float64(x), data)
        assert np.shares_memory(found[0], np.asarray(data))
        np.testing.assert_allclose(found[1:], [np.sin(2 * x) * np.sum(data), 2 * x], rtol=1e-12)
    (closed,) = compiled
    assert all(var.aval.shape == () for var in closed.jaxpr.outvars)
    assert not set(map(id, closed.jaxpr.outvars)) & set(map(id, closed.jaxpr.invars))


def test_random_keys_are_no_arguments_of_parts():
    part = compiled_part(lambda key: jax.random.normal(key, (3,)))
    closed = jax.make_jaxpr(lambda seed: part(jax.random.key(seed)))(np.uint32(3))
    program = HostProgram(closed, with_parts=True)
    np.testing.assert_allclose(program(np.uint32(3))[0], jax.random.normal(jax.random.key(3), (3,)), rtol=1e-6)
    assert not program.parts


def test_a_part_of_few_numbers_is_computed_once_for_each():
    def plain(seed, number):
        return jax.random.normal(jax.random.fold_in(jax.random.key(seed), number), (4,))

    def total(one, seed):
        return lax.fori_loop(0, 40, lambda at, sums: sums + one(seed, at % 4), jnp.zeros(4))

    ways = remembered_part(plain), plain
    kept, again = (HostProgram(jax.make_jaxpr(functools.partial(total, one))(np.uint32(3))) for one in ways)
    for seed in (3, 4, 3):
        expected = jax.jit(functools.partial(total, plain))(np.uint32(seed))
        np.testing.assert_allclose(kept(np.uint32(seed))[0], expected, rtol=1e-12)
        again(np.uint32(seed))
    assert kept.work < 0.2 * again.work


def test_what_is_remembered_has_an_end(monkeypatch):
    monkeypatch.setattr(parts, "MOST_REMEMBERED", 10)
    seen = []
    memory = parts.RememberedPart(lambda operands: [seen.append(operands[0]) or np.full(4, operands[0])])
    for number in (0, 1, 0, 2, 0):  # two results of four numbers fit
        np.testing.assert_array_equal(memory(np.int32(number)), np.full((1, 4), number))
    assert seen == [0, 1, 2, 0]
    monkeypatch.setattr(parts, "MOST_REMEMBERED", 3)
    memory.forget()
    for _ in range(2):
        memory(np.int32(5))
    assert seen[-2:] == [5, 5]


def test_between_runs_nothing_is_kept_of_the_arguments():
    closed = jax.make_jaxpr(lambda x, data: long_part(x, data) + long_part(x + 1, data))(
        put([0.1]), put(np.arange(5.0))
    )
    program, data = HostProgram(closed, with_parts=True), jax.device_put(1e-3 * np.arange(5.0))
    program(np.array([0.1]), data)
    gone = weakref.ref(data)
    del data
    gc.collect()
    assert program.parts
    assert gone() is None


def test_within_a_fit_a_part_runs_once_for_the_same_arguments(monkeypatch):
    calls, quick = [], parts.quick_program

    def watched(closed):
        run = quick(closed)
        return lambda *arguments: calls.append(1) or run(*arguments)

    monkeypatch.setattr(parts, "quick_program", watched)
    closed = jax.make_jaxpr(long_part)(put([0.1]), put(np.arange(5.0)))
    program, data = HostProgram(closed, with_parts=True), jax.device_put(1e-3 * np.arange(5.0))
    with remembering():
        for x in (0.1, 0.1, 0.2, -0.0, 0.0, 0.1):
            (found,) = program(put([x]), data)
            np.testing.assert_allclose(found, jax.jit(long_part)(put([x]), data), rtol=1e-12)
    assert len(calls) == 5  # zeros of either sign are not the same
    gone = weakref.ref(data)
    del data
    gc.collect()
    assert gone() is None


def test_results_are_those_of_one_call_whatever_other_threads_do(monkeypatch):
    part = parts.CompiledPart(jax.make_jaxpr(lambda x: 2 * x)(put([1.0])))
    expected, are_same = part(put([1.0])), parts._are_same

    def meanwhile(one, other):
        found = are_same(one, other)
        part._last = (put([5.0]),), [np.array([10.0])]
        return found

    monkeypatch.setattr(parts, "_are_same", meanwhile)
    assert part(put([1.0])) is expected


def test_a_program_that_fails_keeps_nothing():
    program = HostProgram(jax.make_jaxpr(lambda x: lax.while_loop(lambda y: y < 1e9, lambda y: y + 1, x))(0.0), 10.0)
    data = jax.device_put(1.0)
    with remembering():
        with pytest.raises(TooLong):
            program(data)
        gone = weakref.ref(data)
        del data
        gc.collect()
        assert gone() is None


def test_what_no_output_needs_is_not_computed():
    """Of a call too: where a part of its results is wanted, work on the others is left out."""

    @jax.jit
    def both(x):
        return jnp.sin(x), lax.fori_loop(0, 1000, lambda _, y: jnp.cos(y), x)

    program = HostProgram(jax.make_jaxpr(lambda x: both(x)[0])(0.1))
    np.testing.assert_allclose(program(np.float64(0.1)), [np.sin(0.1)])
    assert program.expected_work < 10


@pytest.mark.parametrize(("is_alone", "num_parts"), [(True, 2), (False, 3)], ids=["alone", "several"])
def test_a_step_of_an_exact_fit_compiles_one_program_and_its_derivative(is_alone, num_parts):
    """Value and slope come with the second derivatives, which the next step begins with; not of several fits."""
    problem = quell.Problem(quell.from_numpyro(student, np.random.default_rng(0).normal(size=50)), quell.MeanField(2))
    objective, params = ExactElbo(exactly(problem), is_alone), problem.family.init()
    draws = Draws(jnp.asarray(0, jnp.uint32), *jnp.ones((2, 1), jnp.int32))

    def step(params):
        here = objective.around(params, draws)
        return jax.tree.leaves((here.value, objective.product(params, draws)(here.grad)))

    program = HostProgram(jax.make_jaxpr(step)(params), with_parts=True)
    for one, two in zip(program(*params), jax.jit(step)(params), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6)
    assert len(program.parts) == num_parts


@pytest.mark.parametrize(("is_alone", "orders"), [(True, [2]), (False, [1, 2])], ids=["alone", "several"])
def test_the_sums_of_a_step_are_traced_once(is_alone, orders, monkeypatch):
    """With the derivatives that it takes: what a step compiles is linearised before it is a program of its own."""
    traced, jet = [], node_sum._jet
    monkeypatch.setattr(
        node_sum, "_jet", lambda program, order, *given: traced.append(order) or jet(program, order, *given)
    )
    rows = np.random.default_rng(0).normal(size=47 + is_alone)  # as many as no other test has, which had been traced
    problem = quell.Problem(quell.from_numpyro(student, rows), quell.MeanField(2))
    objective, params = ExactElbo(exactly(problem), is_alone), problem.family.init()
    draws = Draws(jnp.asarray(0, jnp.uint32), *jnp.ones((2, 1), jnp.int32))

    def step(params):
        here = objective.around(params, draws)
        return here.value, objective.product(params, draws)(here.grad)

    jax.make_jaxpr(step)(params)
    assert traced == orders * (len(traced) // len(orders))
    assert len(traced) == len(orders) * sum(bool(one.instructions) for one in objective.problem.expectation.groups)


def test_parts_tell_apart_static_values_that_compare_equal():
    divide = compiled_part(lambda c, x: x / c if isinstance(c, float) else x * 3)
    found = [float(divide(c, jnp.asarray(1.0))) for c in (1.0, 1, 0.0, -0.0)]
    assert found == [1.0, 3.0, math.inf, -math.inf]


def mixture(y):
    """Whose fit is sampled."""
    mean, scale = sample("mean", dist.Normal(0, 2).expand([2])), sample("scale", dist.HalfNormal(2).expand([2]))
    share = sample("share", dist.Beta(5, 5))
    both = dist.MixtureSameFamily(dist.Categorical(jnp.stack([share, 1 - share])), dist.Normal(mean, scale))
    with numpyro.plate("rows", len(y)):
        sample("y", both, obs=y)


def student(y):
    """Whose fit is exact."""
    mean, scale = sample("mean", dist.Normal(0, 2)), sample("scale", dist.HalfNormal(2))
    with numpyro.plate("rows", len(y)):
        sample("y", dist.StudentT(4.0, mean, scale), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("family", [quell.MeanField, quell.FullRank], ids=["mean-field", "full-rank"])
@pytest.mark.parametrize("model", [mixture, student])
def test_a_fit_is_the_same_whether_parts_or_the_whole_are_compiled(monkeypatch, model, family, dtype):
    half = 150 if model is mixture else 5_000  # too many for NumPy
    y = np.concatenate([RNG.normal(-2, 1, half), RNG.normal(2, 0.5, half)])

    def elbo(with_parts):
        has_parts = TieredProgram._has_parts if with_parts else lambda self: False
        calls, run = [], parts.CompiledPart.__call__
        with monkeypatch.context() as patch, jax.enable_x64(dtype == np.float64):
            patch.setattr(TieredProgram, "_has_parts", has_parts)
            patch.setattr(parts.CompiledPart, "__call__", lambda self, *given: calls.append(self) or run(self, *given))
            tiers._program.cache_clear()
            read = quell.from_numpyro(model, jnp.asarray(y, dtype))
            result = quell.fit(read, family(read.dim), key=jax.random.key(0))
            assert bool(calls) is with_parts
            assert result.status is quell.Status.CONVERGED
            assert result.choice.exact is (model is student)
            return result.final_elbo.value

    assert elbo(True) == pytest.approx(elbo(False), abs=0.02)


@pytest.mark.parametrize("last", [pytest.param(None, marks=pytest.mark.slow), 5], ids=["to its end", "interrupted"])
def test_the_next_step_begins_with_what_a_trial_has_computed(monkeypatch, last):
    """The large program does not run for a trial and for the step after it, and nothing is kept after the fit."""
    runs, seen, quick, call = [], set(), parts.quick_program, parts.CompiledPart.__call__

    def watched(closed):
        run = quick(closed)
        return lambda *arguments: runs.append(closed) or run(*arguments)

    def interrupt(progress):
        if progress.step == last:
            raise KeyboardInterrupt

    monkeypatch.setattr(parts, "quick_program", watched)
    monkeypatch.setattr(parts.CompiledPart, "__call__", lambda self, *given: seen.add(self) or call(self, *given))
    monkeypatch.setattr(driver, "_CHUNK_SECONDS", 0.0)  # a run for each step
    tiers._program.cache_clear()
    model = quell.from_numpyro(student, jnp.asarray(RNG.normal(size=20_000)))
    result = quell.fit(model, quell.MeanField(model.dim), key=jax.random.key(0), callback=interrupt)
    assert result.status is (quell.Status.CONVERGED if last is None else quell.Status.INTERRUPTED)
    largest = max(runs, key=lambda closed: len(closed.jaxpr.outvars))
    assert len({id(closed) for closed in runs}) == len(seen) <= 3
    assert sum(closed is largest for closed in runs) < 2 * result.history.num_steps
    assert all(part._last is None for part in seen)


def test_a_function_is_traced_once_for_each_kind_of_arguments():
    traces = []

    @tiered_jit
    def function(x, word):
        traces.append(word)
        return {"twice": 2 * x, "word": word}

    assert function(jnp.ones(2), "a")["word"] == "a"
    function(jnp.zeros(2), "a")
    assert traces == ["a"]
    function(jnp.zeros(3), "a")
    function(jnp.zeros(3), "b")
    function(jnp.zeros(3), 1)
    function(jnp.zeros(3), True)
    assert traces == ["a", "a", "b", 1, True]


@pytest.fixture
def options(monkeypatch):
    """Those that users have; tests have others, in the environment."""
    monkeypatch.setattr(compilation, "quick_options", lambda backend: {"xla_backend_optimization_level": 1})


@pytest.mark.usefixtures("options")
def test_inside_of_another_program_it_is_a_part_of_that():
    for run in (tiered_jit, tiered_once):
        assert float(jax.jit(run(lambda x: 2 * x))(3.0)) == 6.0
    double = tiered_jit(lambda x: 2 * x)
    assert float(jax.jit(jax.grad(lambda x: double(x) ** 2))(3.0)) == 24.0


@pytest.mark.usefixtures("options")
def test_a_closure_over_what_another_program_computes_is_a_part_of_that():
    for run in (tiered_once, tiered_jit):
        found = jax.jit(lambda x, run=run: run(lambda y: x * y)(np.float64(3.0)))(2.0)
        assert float(found) == 6.0


@pytest.fixture
def compiled():
    """Names of the programs that are compiled."""
    names = []

    def listen(event, seconds, **about):
        if event.endswith("backend_compile_duration"):
            names.append(about.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def regression(x, y):
    sigma, slopes = sample("sigma", dist.HalfNormal(1)), sample("slopes", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("rows", len(y)):
        sample("y", dist.Normal(x @ slopes, sigma), obs=y)


def test_a_small_model_is_fitted_without_a_compiler(compiled, key):
    """So does what is left to the compiler in silence come to light; the shapes are those of no other test."""
    rng = np.random.default_rng(0)
    features, numbers = jax.device_put((rng.normal(size=(37, 5)), rng.normal(size=37)))
    models = [
        quell.logistic_regression(features, np.arange(37) % 2),
        quell.from_numpyro(regression, features, numbers),
    ]
    compiled.clear()  # the trace of a NumPyro model runs operations of its own
    for model in models:
        result = quell.fit(model, quell.FullRank(model.dim), key=key)
        result.sample(key, 103, corrected=False)
        result.summary(num=101, corrected=False)
        assert result.elbo().is_exact
    assert compiled == []
    for number, model in enumerate(models):  # corrected draws where k-hat is open: the keys of more draws are folded
        quell.fit(model, quell.FullRank(model.dim), key=key).sample(key, 107 + number)
    assert len(compiled) <= 1


def test_a_fit_is_the_same_by_numpy_and_compiled(monkeypatch, key):
    model = quell.logistic_regression(X, [0, 1, 1, 0])
    fit = functools.partial(quell.fit, model, quell.FullRank(3), key=key)
    found = fit()
    monkeypatch.setattr(tiers, "WORTH_MICROSECONDS", 0.0)
    tiers._program.cache_clear()
    expected = fit()
    assert found.history.num_steps == expected.history.num_steps
    for one, other in zip(found.params, expected.params, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
