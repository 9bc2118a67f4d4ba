# SPDX-License-Identifier: Apache-2.0
"""Batched LAPACK calls, one matrix at a time, because several at once may dead-lock (docs/decisions, record 10)."""

import functools
import importlib.metadata
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from quell.core.program import equations

RANKS = {
    "cholesky": 2,
    "eig": 2,
    "eigh": 2,
    "geqrf": 2,
    "hessenberg": 2,
    "householder_product": 2,
    "lu": 2,
    "ormqr": 2,
    "qr": 2,
    "schur": 2,
    "svd": 2,
    "triangular_solve": 2,
    "tridiagonal": 2,
    "tridiagonal_solve": 1,
}
"""Primitives that call LAPACK on a CPU, with the rank of their first operand without batch axes."""

REPAIRED = (0, 11, 2)
"""From this jaxlib on, a batched call does not wait for threads of the pool that it runs in."""


def one_matrix_at_a_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in which each batched LAPACK call is a loop over its matrices; for use inside `jax.jit`.

    Args:
        function: of any arguments; what is not an array is static.

    Returns:
        A function whose results are those of the given one, bit for bit as far as LAPACK computes them.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if not _is_affected():
            return function(*args)
        arrays, static = eqx.partition(args, eqx.is_array)
        kept = []

        def of_arrays(arrays: Any) -> Any:
            out, rest = eqx.partition(function(*eqx.combine(arrays, static)), eqx.is_array)
            kept.append(rest)
            return out

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(arrays)
        out = jaxpr_as_fun(_looped(closed))(*jax.tree.leaves(arrays))
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(shape), out), kept[-1])

    return call


def _is_affected() -> bool:
    """Devices of a mesh have their own share of a batch, which a loop would gather: there nothing is changed."""
    return _jaxlib() < REPAIRED and jax.sharding.get_abstract_mesh().empty


@functools.cache
def _jaxlib() -> tuple[int, ...]:
    return tuple(int(part) for part in importlib.metadata.version("jaxlib").split(".")[:3] if part.isdigit())


def looped(closed: ClosedJaxpr) -> ClosedJaxpr:
    """A program with loops instead of its batched calls, where these may dead-lock."""
    return _looped(closed) if _is_affected() else closed


def _looped(program: Any) -> Any:
    """Of a program, open or closed; what is no program stays as it is."""
    if isinstance(program, Jaxpr):  # from JAX 0.11 on, closed ones too
        if not any(map(_is_batched, equations(program))):
            return program
        return program.replace(eqns=[_looped_equation(equation) for equation in program.eqns])
    return program.replace(jaxpr=_looped(program.jaxpr)) if isinstance(program, ClosedJaxpr) else program


def _looped_equation(equation: Any) -> Any:
    if not _is_batched(equation):
        return equation.replace(params=jax.tree.map(_looped, equation.params))
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in equation.invars]
    (loop,) = jax.make_jaxpr(jax.jit(functools.partial(_loop, equation)))(*shapes).eqns
    return loop.replace(invars=equation.invars, outvars=equation.outvars)


def _loop(equation: Any, *operands: jax.Array) -> list[jax.Array]:
    """The results of a batched equation, from one matrix at a time."""
    batch, rank = _batch(equation), len(_batch(equation))
    flat = [operand.reshape(-1, *operand.shape[rank:]) for operand in operands]
    several = equation.primitive.multiple_results
    found = jax.lax.map(lambda one: equation.primitive.bind(*one, **equation.params), flat)
    return [one.reshape(*batch, *one.shape[1:]) for one in (found if several else [found])]


def _is_batched(equation: Any) -> bool:
    return math.prod(_batch(equation)) > 1


def _batch(equation: Any) -> tuple[int, ...]:
    """Lengths of the batch axes; none for an equation that does not call LAPACK."""
    rank = RANKS.get(equation.primitive.name)
    return () if rank is None else equation.invars[0].aval.shape[:-rank]
