# SPDX-License-Identifier: Apache-2.0
"""Whether a function is known to be smooth, read off the program that JAX traces from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array

from quell.problem import Problem

JUMPS = frozenset(
    {
        *("abs", "cbrt", "ceil", "clamp", "cond", "cummax", "cummin", "floor", "max", "min", "nextafter", "pow"),
        *("reduce_max", "reduce_min", "reduce_precision", "rem", "round", "select_and_gather_add", "select_n", "sign"),
        *("sort", "sqrt", "top_k", "while"),
    }
)
"""Operations through which a value or its gradient may jump; a root does so at zero, a branch where it is taken."""

KNOWN = frozenset({"logaddexp", "softplus"})
"""Functions of JAX that are smooth, though their programs compare numbers to avoid overflow."""

SPREADS = frozenset({"broadcast_in_dim", "convert_element_type", "copy", "reshape"})
"""Operations that leave a constant what it is."""


def has_no_kinks(problem: Problem) -> bool:
    """Whether log-likelihood and log-prior are known to have a continuous gradient, so that `Price` is unbiased.

    Nothing is computed. A comparison on the way from the latent to the density, other than one with a support, means
    that it is not known, even where it does no harm; so `False` says nothing, and `True` can be relied on.
    """
    model = problem.model
    rows = jax.tree.map(lambda x: x[:1], model.data)
    latent = jax.eval_shape(lambda: jnp.zeros(model.dim))
    return is_smooth(lambda z: model.log_likelihood(z, rows), latent) and is_smooth(model.prior.log_prob, latent)


def is_smooth(function: Callable[[Array], Any], argument: Any) -> bool:
    """Whether no operation that depends on the argument may jump.

    Args:
        function: of one array.
        argument: its shape, or a value of that shape.
    """
    jaxpr = jax.make_jaxpr(function)(argument).jaxpr
    return _passes(jaxpr, [Seen(depends=True)] * len(jaxpr.invars)) is not None


class Seen(NamedTuple):
    """What is known of a variable of a program.

    Args:
        depends: whether it depends on the latent.
        outside: whether it is minus infinity, the log density outside of a support.
    """

    depends: bool = False
    outside: bool = False


def _passes(jaxpr: Any, given: list[Seen]) -> list[Seen] | None:
    """What is known of the outputs of a program; `None` where it may jump."""
    known = dict(zip(jaxpr.invars, given, strict=True))

    def look(var: Any) -> Seen:
        if isinstance(var, Literal):
            return Seen(
                outside=bool(np.all(np.isneginf(var.val))) if np.issubdtype(var.val.dtype, np.inexact) else False
            )
        return known.get(var, Seen())

    for equation in _used(jaxpr):
        inputs = [look(var) for var in equation.invars]
        outputs = _step(equation, inputs)
        if outputs is None:
            return None
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [look(var) for var in jaxpr.outvars]


def _used(jaxpr: Any) -> list[Any]:
    """The operations whose results reach an output, in their order."""
    needed, found = {id(var) for var in jaxpr.outvars}, []
    for equation in reversed(jaxpr.eqns):
        if any(id(var) in needed for var in equation.outvars):
            needed |= {id(var) for var in equation.invars}
            found.append(equation)
    return found[::-1]


def _step(equation: Any, inputs: list[Seen]) -> list[Seen] | None:
    name, num = equation.primitive.name, len(equation.outvars)
    inner = _programs(equation)
    if equation.params.get("name") not in KNOWN and len(inner) == 1 and len(inner[0].invars) == len(inputs):
        return _passes(inner[0], inputs)
    if name in SPREADS and inputs[0].outside:
        return inputs[:1]
    if not any(one.depends for one in inputs):
        return [Seen()] * num
    is_number = any(jnp.issubdtype(var.aval.dtype, jnp.inexact) for var in equation.outvars)
    return None if is_number and _may_jump(equation, inputs) else [Seen(depends=True)] * num


def _may_jump(equation: Any, inputs: list[Seen]) -> bool:
    """Whether the numbers that an operation makes may jump, or their gradient."""
    if equation.params.get("name") in KNOWN:
        return False
    if equation.primitive.name == "select_n" and not inputs[0].depends:
        return False
    if equation.primitive.name == "select_n" and sum(not one.outside for one in inputs[1:]) <= 1:
        return False  # a density within its support, and nothing outside
    if equation.primitive.name in JUMPS:
        return True
    # A number made of what is none, such as the result of a comparison or an index, is a step function.
    pairs = zip(inputs, equation.invars, strict=True)
    steps = [one.depends and not jnp.issubdtype(var.aval.dtype, jnp.inexact) for one, var in pairs]
    everything = [_passes(one, [Seen(depends=True)] * len(one.invars)) for one in _programs(equation)]
    return any(steps) or any(found is None for found in everything)


def _programs(equation: Any) -> list[Any]:
    """The programs within an operation, such as a call or the body of a loop."""
    values = [p for value in equation.params.values() for p in (value if isinstance(value, tuple | list) else (value,))]
    return [getattr(p, "jaxpr", p) for p in values if hasattr(p, "jaxpr") or hasattr(p, "eqns")]
