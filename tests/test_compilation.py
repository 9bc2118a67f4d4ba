# SPDX-License-Identifier: Apache-2.0
"""Compiler options for a short compilation, programs that cannot dead-lock, and walking through traced programs."""

import contextlib
import functools
import os
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from quell.core import lapack
from quell.core.compilation import quick_jit, quick_lower, quick_options
from quell.core.lapack import one_matrix_at_a_time
from quell.core.program import equations, inner_programs, live_equations, variables
from quell.core.tiers import TieredProgram, tiered_jit, tiered_once
from tolerances import EXACT, PATIENCE

LEVEL = "xla_backend_optimization_level"


@pytest.mark.parametrize(("flags", "found"), [("", 1), (f"--{LEVEL}=3", None), ("--xla_cpu_enable_fast_math=false", 1)])
def test_what_the_user_has_set_is_left_as_it_is(flags, found, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert quick_options.__wrapped__("cpu").get(LEVEL) == found
    assert quick_options.__wrapped__("gpu") == {}


def _product(left, right):
    return left @ right


@pytest.mark.parametrize(
    ("backend", "chosen", "is_full"), [("gpu", None, True), ("gpu", "tensorfloat32", False), ("cpu", None, False)]
)
def test_an_accelerator_does_not_round_the_factors_of_products(backend, chosen, is_full, monkeypatch):
    """Unless the user wants that; a CPU does not anyway."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    matrix = jnp.ones((2, 2))
    with contextlib.nullcontext() if chosen is None else jax.default_matmul_precision(chosen):
        programs = [quick_lower(_product, matrix, matrix).as_text()]
        monkeypatch.setattr(TieredProgram, "__call__", lambda self, leaves: programs.append(str(self.closed)))
        tiered_jit(_product)(matrix, matrix)
        tiered_once(_product)(matrix, matrix)

        def seen(left, right):
            programs.append(str(jax.make_jaxpr(_product)(left, right)))
            return left

        quick_jit(seen)(matrix, matrix)
    assert ["HIGHEST" in program for program in programs] == [is_full] * 4


def test_an_option_that_the_compiler_does_not_know_is_left_out(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("quell.core.compilation._is_known", lambda name, value: name != LEVEL)
    assert LEVEL not in quick_options.__wrapped__("cpu")


def _nested(x, unused):
    doubled = jax.lax.scan(lambda carry, _: (2.0 * carry, None), x, None, length=3)[0]
    chosen = jax.lax.cond(x > 0, jnp.sin, jnp.cos, doubled)
    _ = jnp.tan(unused)
    return jax.jit(jnp.exp)(chosen)


def test_the_walker_visits_every_program_within_a_program():
    program = jax.make_jaxpr(_nested)(1.0, 2.0).jaxpr
    names = [equation.primitive.name for equation in equations(program)]
    assert {"scan", "mul", "cond", "sin", "cos", "exp", "tan"} <= set(names)
    assert names.index("scan") < names.index("mul"), "the outer equation comes first"
    (branches,) = (inner_programs(equation) for equation in program.eqns if equation.primitive.name == "cond")
    assert len(branches) == 2


def test_live_equations_are_those_that_reach_an_output():
    program = jax.make_jaxpr(_nested)(1.0, 2.0).jaxpr
    live = live_equations(program)
    assert live == [equation for equation in program.eqns if equation.primitive.name != "tan"]
    read = {var for equation in live for var in variables(equation.invars)}
    assert program.invars[0] in read
    assert program.invars[1] not in read
    assert live_equations(program, []) == []


# Batched LAPACK calls


def _matrices(*batch):
    roots = np.random.default_rng(0).normal(size=(*batch, 4, 4))
    return jnp.asarray(roots @ np.swapaxes(roots, -1, -2) + 4 * np.eye(4))


def _logdet(a):
    return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))))


PROGRAMS = {
    "cholesky": jnp.linalg.cholesky,
    "solve": lambda a: jnp.linalg.solve(a, a[..., :1] + 1),
    "triangular": lambda a: jax.scipy.linalg.solve_triangular(a, a, lower=True),
    "qr": jnp.linalg.qr,
    "svd": functools.partial(jnp.linalg.svd, compute_uv=False),
    "eigh": jnp.linalg.eigh,
    "slogdet": jnp.linalg.slogdet,
    "tridiagonal": lambda a: jax.lax.linalg.tridiagonal_solve(a[..., 0], 9 + a[..., 1], a[..., 2], a),
    "gradient": jax.vmap(jax.vmap(jax.grad(_logdet))),
    "Hessian": jax.vmap(jax.vmap(jax.hessian(_logdet))),
    "in a loop": lambda a: jax.lax.scan(lambda carry, _: (a + jnp.linalg.cholesky(carry) ** 2, None), a, None, 3)[0],
    "in a branch": lambda a: jax.lax.cond(a[0, 0, 0, 0] > 0, jnp.linalg.cholesky, jnp.sin, a),
    "in a compiled function": jax.jit(lambda a: jax.jit(jnp.linalg.cholesky)(a) + 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_batched_lapack_calls_become_loops_with_the_same_results(name, monkeypatch):
    monkeypatch.setattr(lapack, "_is_affected", lambda: True)
    function, a = PROGRAMS[name], _matrices(2, 3)
    program = jax.make_jaxpr(one_matrix_at_a_time(function))(a).jaxpr
    called = [equation for equation in equations(program) if equation.primitive.name in lapack.RANKS]
    assert called
    assert all(equation.invars[0].aval.ndim == lapack.RANKS[equation.primitive.name] for equation in called)
    one, other = quick_jit(function)(a), jax.jit(function)(a)
    jax.tree.map(functools.partial(np.testing.assert_allclose, **EXACT), one, other)


def test_what_is_no_array_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(lapack, "_is_affected", lambda: True)
    found = eqx.filter_jit(one_matrix_at_a_time(lambda a, how: {"a": how(a), "how": how, "none": None}))(
        _matrices(3), jnp.linalg.cholesky
    )
    assert (found["how"], found["none"]) == (jnp.linalg.cholesky, None)
    assert found["a"].shape == (3, 4, 4)


def test_a_program_without_batched_calls_is_not_changed(monkeypatch):
    monkeypatch.setattr(lapack, "_is_affected", lambda: True)
    for function in (_nested, lambda a, b: jnp.linalg.cholesky(a * jnp.eye(2)) + b):
        assert str(jax.make_jaxpr(one_matrix_at_a_time(function))(1.0, 2.0)) == str(jax.make_jaxpr(function)(1.0, 2.0))


def test_a_repaired_jaxlib_batches(monkeypatch):
    monkeypatch.setattr(lapack, "_jaxlib", lambda: (0, 12, 0))
    program = jax.make_jaxpr(one_matrix_at_a_time(jnp.linalg.cholesky))(_matrices(3)).jaxpr
    (call,) = (equation for equation in equations(program) if equation.primitive.name == "cholesky")
    assert call.invars[0].aval.ndim == 3


DEADLOCK = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import jax, jax.numpy as jnp
from quell.core.compilation import quick_jit
roots = jax.random.normal(jax.random.key(0), (10, 60, 60))
several = [roots @ roots.mT + (60.0 + extra) * jnp.eye(60) for extra in range(20)]
factor = quick_jit(lambda *several: [jnp.linalg.cholesky(one) for one in several])
for _ in range(200):
    jax.block_until_ready(factor(*several))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process limited to two cores")
def test_independent_batched_factorisations_end_on_two_cores():
    """With `jax.jit` instead of `quick_jit` this program does not end (docs/decisions/0010-no-deadlock.md)."""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", DEADLOCK], timeout=PATIENCE, check=True)


GAUSSIAN_PROCESS = """
import os
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
import quell

x = jnp.linspace(-1.0, 1.0, 60)

def model(y):
    scale, noise, length = (numpyro.sample(name, dist.LogNormal(0.0, 1.0)) for name in ("scale", "noise", "length"))
    kernel = scale * jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + (noise + 1e-3) * jnp.eye(60)
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(60), covariance_matrix=kernel), obs=y)

model = quell.from_numpyro(model, jnp.sin(4 * x))
quell.fit(model, quell.FullRank(3), steps=40, key=jax.random.key(0))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs a process limited to two cores")
def test_a_gaussian_process_is_fitted_on_two_cores():
    subprocess.run([sys.executable, "-c", GAUSSIAN_PROCESS], timeout=PATIENCE, check=True)
