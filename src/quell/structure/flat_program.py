# SPDX-License-Identifier: Apache-2.0
"""A program with the programs that it calls written out, and what in it is constant computed at once."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Primitive
from jaxtyping import Array

from quell.core.program import inner_programs
from quell.core.tiers import tiered_once

CALLS = frozenset(
    {"checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit", "remat", "remat2"}
)
"""Programs within a program that are written out."""

KEPT: dict[str, Callable[..., Array]] = {
    "logaddexp": jnp.logaddexp,
    "xlogy": jax.scipy.special.xlogy,
    "xlog1py": jax.scipy.special.xlog1py,
    "log_ndtr": jax.scipy.special.log_ndtr,
}
"""Functions of JAX, element by element, with derivatives of their own: they stay what they are."""


TRIED, TRIED_SCALE = 64, 1.5
"""Random arguments at which conditions are tried, and their standard deviation."""


class Operation(NamedTuple):
    """A primitive with its parameters; two that do the same are equal, so that their programs are compiled once.

    Args:
        primitive: of JAX, or a function that stays what it is.
        params: of the primitive, by name.
    """

    primitive: Any
    params: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *values: Any, **changed: Any) -> Any:
        """The results."""
        if not isinstance(self.primitive, Primitive):
            return self.primitive(*values)
        return self.primitive.bind(*values, **{**self.primitive.get_bind_params(dict(self.params)), **changed})


@dataclasses.dataclass(eq=False)
class Value:
    """A variable of a program.

    Attributes:
        shape: of the array.
        dtype: of its numbers.
        depends: whether it depends on the argument.
    """

    shape: tuple[int, ...]
    dtype: Any
    depends: bool = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=int))


@dataclasses.dataclass(eq=False)
class Step:
    """An operation.

    Attributes:
        name: of the primitive, or of a function that stays what it is.
        bind: computes the results.
        params: of the primitive.
        inputs: values.
        outputs: values.
    """

    name: str
    bind: Operation
    params: dict[str, Any]
    inputs: list[Value]
    outputs: list[Value]

    @property
    def depends(self) -> bool:
        """Whether it has to do with the argument."""
        return any(value.depends for value in self.inputs)


class FlatProgram:
    """The steps of a function of one array.

    Args:
        function: with any arrays as results.
        argument: its shape and type.
    """

    def __init__(self, function: Callable[[Array], Any], argument: jax.ShapeDtypeStruct) -> None:
        """Trace the function and write out its calls."""
        closed = jax.make_jaxpr(function)(argument)
        self.steps: list[Step] = []
        self.known: dict[Value, Any] = {}
        self.argument = Value(argument.shape, argument.dtype, depends=True)
        given = [self._constant(value) for value in closed.consts]
        self.outputs = self._read(closed.jaxpr, given, [self.argument])
        self._drop_unused()

    def _constant(self, value: Any) -> Value:
        found = Value(np.shape(value), jnp.result_type(value))
        self.known[found] = value
        return found

    def _read(self, jaxpr: Any, consts: list[Value], inputs: list[Value]) -> list[Value]:
        """The outputs of a program; a variable of it has a new value each time that it is called."""
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True))

        def value(atom: Any) -> Value:
            return self._constant(atom.val) if isinstance(atom, Literal) else values[atom]

        for equation in jaxpr.eqns:
            given = [value(atom) for atom in equation.invars]
            kept, inner, branch = _kept(equation), inner_programs(equation), _branch_of_platform(equation)
            if branch is not None:
                found = self._read(branch.jaxpr, [self._constant(one) for one in branch.consts], given[1:])
            elif equation.primitive.name in CALLS and inner and kept is None and len(inner[0].invars) == len(given):
                closed = next(v for v in equation.params.values() if hasattr(v, "jaxpr") or hasattr(v, "eqns"))
                found = self._read(inner[0], [self._constant(one) for one in getattr(closed, "consts", ())], given)
            else:
                found = self._step(equation, kept, given)
            values |= dict(zip(equation.outvars, found, strict=True))
        return [value(atom) for atom in jaxpr.outvars]

    def _step(self, equation: Any, kept: str | None, given: list[Value]) -> list[Value]:
        depends = any(one.depends for one in given)
        outputs = [Value(var.aval.shape, var.aval.dtype, depends) for var in equation.outvars]
        name = kept or equation.primitive.name
        bind = Operation(KEPT[kept]) if kept else Operation(equation.primitive, tuple(equation.params.items()))
        self.steps.append(Step(name, bind, {} if kept else equation.params, given, outputs))
        return outputs

    def _drop_unused(self) -> None:
        needed, kept = set(self.outputs), []
        for step in reversed(self.steps):
            if needed.intersection(step.outputs):
                needed.update(step.inputs)
                kept.append(step)
        self.steps = kept[::-1]

    def compute(
        self,
        wanted: Iterable[Value],
        extra: list[Callable[[Callable[[Value], Array]], list[Array]]],
        conditions: list[Value],
    ) -> tuple[list[list[np.ndarray]], list[bool]]:
        """Compute constant values in one program, with more that is made of them.

        Args:
            wanted: values that do not depend on the argument; they become known.
            extra: functions of a function that looks up a constant value.
            conditions: values that do, and are tried at random arguments.

        Returns:
            The results of the functions, and which conditions held everywhere.
        """
        wanted, names = [value for value in wanted if value not in self.known], list(self.known)
        if not (wanted or extra or conditions):
            return [], []

        def run(values: dict[Value, Any], *, dependent: bool) -> dict[Value, Any]:
            for step in self.steps:
                if step.depends == dependent:
                    found = step.bind(*(values[one] for one in step.inputs))
                    found = found if isinstance(found, list | tuple) else [found]
                    values = values | dict(zip(step.outputs, found, strict=True))
            return values

        def everything(known: list[Any]) -> tuple[list[Array], list[list[Array]], list[Array]]:
            values = run(dict(zip(names, known, strict=True)), dependent=False)

            def hold(argument: Array) -> list[Array]:
                there = run(values | {self.argument: argument}, dependent=True)
                return [jnp.all(there[one]) for one in conditions]

            tried = TRIED_SCALE * jax.random.normal(
                jax.random.key(0), (TRIED, *self.argument.shape), self.argument.dtype
            )
            held = [jnp.all(one) for one in jax.lax.map(hold, tried)] if conditions else []
            return [values[one] for one in wanted], [make(values.__getitem__) for make in extra], held

        found, made, held = tiered_once(everything)(list(self.known.values()))
        self.known |= dict(zip(wanted, map(np.asarray, found), strict=True))
        return [[np.asarray(each) for each in one] for one in made], [bool(one) for one in held]


def _branch_of_platform(equation: Any) -> Any:
    """The program that runs on the present platform, where an equation has several for others; `None` elsewhere."""
    platforms = equation.params.get("branches_platforms")
    if not platforms:
        return None
    here = (at for at, names in enumerate(platforms) if names is None or jax.default_backend() in names)
    return equation.params["branches"][next(here)]


def _kept(equation: Any) -> str | None:
    """The name of a function of JAX that stays what it is."""
    if equation.primitive.name != "custom_jvp_call":
        return None
    info = getattr(inner_programs(equation)[0], "debug_info", None)
    place = str(getattr(info, "func_src_info", "")).replace("\\", "/")
    name = place.partition(" at ")[0]
    return name if name in KEPT and "/jax/_src/" in place else None
