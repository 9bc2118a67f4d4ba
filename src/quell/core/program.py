# SPDX-License-Identifier: Apache-2.0
"""Walking through the programs that JAX traces."""

from collections.abc import Iterator
from typing import Any


def inner_programs(equation: Any) -> list[Any]:
    """The programs within an operation, such as a call or the body of a loop."""
    values = [p for value in equation.params.values() for p in (value if isinstance(value, tuple | list) else (value,))]
    return [getattr(p, "jaxpr", p) for p in values if hasattr(p, "jaxpr") or hasattr(p, "eqns")]


def equations(jaxpr: Any) -> Iterator[Any]:
    """Every operation of a program, and of the programs within it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in inner_programs(equation):
            yield from equations(inner)
