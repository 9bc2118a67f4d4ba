# SPDX-License-Identifier: Apache-2.0
"""Walking through the programs (jaxprs) that JAX traces from functions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Literal


def inner_programs(equation: Any) -> list[Any]:
    """The programs within one equation: the callee of a call, the body of a loop, the branches of a conditional.

    Args:
        equation: of a jaxpr.

    Returns:
        Their jaxprs (open, without constants), in the order of the equation's parameters; most equations have none.

    Example:
        >>> import jax
        >>> (call,) = jax.make_jaxpr(jax.jit(lambda x: x + 1))(0.0).jaxpr.eqns
        >>> [inner.eqns[0].primitive.name for inner in inner_programs(call)]
        ['add']
    """
    values = [
        one for value in equation.params.values() for one in (value if isinstance(value, tuple | list) else [value])
    ]
    return [getattr(one, "jaxpr", one) for one in values if hasattr(one, "jaxpr") or hasattr(one, "eqns")]


def equations(jaxpr: Any) -> Iterator[Any]:
    """All equations of a program and of the programs within it, each outer one before its inner ones.

    A loop's body comes once, and so does every branch of a conditional.
    """
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_programs(equation):
            yield from equations(inner)


def returns_none(function: Callable[[], Any]) -> bool:
    """Whether a function returns `None`; it is traced, and nothing is computed."""
    return jax.eval_shape(function) is None


def live_equations(jaxpr: Any, outputs: Sequence[Any] | None = None) -> list[Any]:
    """The equations of a program, without the programs within it, whose results reach an output; in their order.

    Args:
        jaxpr: the program.
        outputs: those of its outputs that count; `None` for all.
    """
    needed, found = set(variables(jaxpr.outvars if outputs is None else outputs)), []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(variables(equation.invars))
            found.append(equation)
    return found[::-1]


def variables(atoms: Any) -> list[Any]:
    """The variables among the inputs or outputs of an equation or a program; literals are left out."""
    return [atom for atom in atoms if not isinstance(atom, Literal)]
