# SPDX-License-Identifier: Apache-2.0
"""Compiler options for a short compilation, and walking through traced programs."""

import jax
import jax.numpy as jnp
import pytest

from quell.core.compilation import quick_options
from quell.core.program import equations, inner_programs, live_equations, variables

LEVEL = "xla_backend_optimization_level"


@pytest.mark.parametrize(("flags", "found"), [("", 1), (f"--{LEVEL}=3", None), ("--xla_cpu_enable_fast_math=false", 1)])
def test_what_the_user_has_set_is_left_as_it_is(flags, found, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert quick_options.__wrapped__("cpu").get(LEVEL) == found
    assert quick_options.__wrapped__("gpu") == {}


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
