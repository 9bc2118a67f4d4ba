# SPDX-License-Identifier: Apache-2.0
"""Whether a function is known to be smooth, read off the program that JAX traces from it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from quell.core.program import inner_programs, live_equations
from quell.data.access import first_rows
from quell.evaluation import Problem

SUMS = frozenset(
    {
        *("add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "expand_dims"),
        *("reduce_sum", "reshape", "slice", "squeeze", "sub", "transpose"),
    }
)
"""Operations that move and add numbers."""

SMOOTH = SUMS | frozenset(
    {
        *("asinh", "atan", "cholesky", "conv_general_dilated", "cos", "cosh", "cumlogsumexp", "cumsum", "digamma"),
        *("div", "dot_general", "dynamic_slice", "erf", "erfc", "exp", "exp2", "expm1", "gather", "integer_pow"),
        *("lgamma", "log", "log1p", "logistic", "mul", "neg", "pad", "polygamma", "reduce_prod", "rev", "scatter"),
        *("scatter-add", "select_n", "sin", "sinh", "split", "square", "tan", "tanh", "triangular_solve"),
    }
)
"""Operations that are smooth where they are finite; a selection by the data is one of them."""

CALLS = frozenset(
    {"checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat"}
)
"""Programs within a program."""

KNOWN = frozenset({"logaddexp", "softplus"})
"""Functions of JAX that are smooth, though their programs compare numbers to avoid overflow."""


def has_no_kinks(problem: Problem) -> bool:
    """Whether log-likelihood and log-prior have a continuous gradient, so that `BonnetPrice` is unbiased.

    Their programs are read, and nothing is computed. Every operation on the way from the latent to the density must be
    known to be smooth where it is finite; a comparison is allowed with a support only. So `False` says nothing. `True`
    can be relied on, but for kinks that are written through infinities, such as `exp(log(z**2) / 2)`, and for
    derivatives of the user's own.
    """
    model = problem.model
    rows = first_rows(model.data, 1)
    latent = jax.eval_shape(lambda: jnp.zeros(model.dim))
    return is_smooth(lambda z: model.log_likelihood(z, rows), latent) and is_smooth(model.prior.log_prob, latent)


def is_smooth(function: Callable[[Any], Any], argument: Any) -> bool:
    """Whether no operation that depends on the argument may jump.

    Args:
        function: of an array or a tree of them.
        argument: its shapes, or values of them.
    """
    jaxpr = jax.make_jaxpr(function)(argument).jaxpr
    return _passes(jaxpr, [Seen(depends=True)] * len(jaxpr.invars)) is not None


class Seen(NamedTuple):
    """What is known of a variable of a program.

    Args:
        depends: whether it depends on the latent.
        outside: whether it is minus infinity, the log density outside of a support.
        masked: whether it is minus infinity outside of a support that depends on the latent.
    """

    depends: bool = False
    outside: bool = False
    masked: bool = False


def _passes(jaxpr: Any, given: list[Seen]) -> list[Seen] | None:
    """What is known of the outputs of a program; `None` where it may jump."""
    known = dict(zip(jaxpr.invars, given, strict=True))

    def seen(var: Any) -> Seen:
        if isinstance(var, Literal):
            return Seen(outside=bool(np.all(np.asarray(var.val) == -np.inf)))
        return known.get(var, Seen())

    for equation in live_equations(jaxpr):
        outputs = _step(equation, [seen(var) for var in equation.invars])
        if outputs is None:
            return None
        known |= dict(zip(equation.outvars, outputs, strict=True))
    return [seen(var) for var in jaxpr.outvars]


def _step(equation: Any, inputs: list[Seen]) -> list[Seen] | None:
    """What is known of the results of one operation; `None` where they may jump."""
    name, num, inner = equation.primitive.name, len(equation.outvars), inner_programs(equation)
    if name in SUMS and len(inputs) == 1 and inputs[0].outside:
        return inputs
    if not any(one.depends for one in inputs):
        return [Seen()] * num
    if not any(_is_number(var) for var in equation.outvars):  # a comparison: it matters where it is used
        return [Seen(depends=True)] * num
    if equation.params.get("name") in KNOWN and not any(one.masked for one in inputs):
        return [Seen(depends=True)] * num
    if name in CALLS and inner and len(inner[0].invars) == len(inputs):
        return _passes(inner[0], inputs)
    if name == "scan":
        return _scan(equation, inputs)
    if name == "select_n" and inputs[0].depends:
        return _within_support(inputs)
    steps = [one.depends and not _is_number(var) for one, var in zip(inputs, equation.invars, strict=True)]
    masked = any(one.masked for one in inputs)
    keeps = name in SUMS or (name == "mul" and sum(one.depends for one in inputs) == 1)
    if name not in SMOOTH or any(steps) or (masked and not keeps):
        return None
    return [Seen(depends=True, masked=masked)] * num


def _within_support(inputs: list[Seen]) -> list[Seen] | None:
    """A selection by the latent: of a density within its support, and of nothing outside."""
    return [Seen(depends=True, masked=True)] if sum(not one.outside for one in inputs[1:]) <= 1 else None


def _scan(equation: Any, inputs: list[Seen]) -> list[Seen] | None:
    """A loop: what is carried depends on the latent from the iteration after the one in which it begins to."""
    body = inner_programs(equation)[0]
    last = _num_whole(equation.invars, body.invars)
    first = last - _num_whole(equation.outvars, body.outvars)
    given = [one._replace(outside=False) for one in inputs]
    while True:
        outputs = _passes(body, given)
        if outputs is None:
            return None
        carried = [
            Seen(old.depends or new.depends, masked=old.masked or new.masked)
            for old, new in zip(given[first:last], outputs[: last - first], strict=True)
        ]
        if carried == given[first:last]:
            return [one._replace(outside=False) for one in outputs]
        given[first:last] = carried


def _num_whole(outer: list[Any], inner: list[Any]) -> int:
    """Of what goes into a loop, or comes out, how many are not sliced: constants first, then what is carried."""
    return sum(one.aval.shape == each.aval.shape for one, each in zip(outer, inner, strict=True))


def _is_number(var: Any) -> bool:
    return jnp.issubdtype(var.aval.dtype, jnp.inexact)
