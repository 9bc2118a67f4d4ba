# SPDX-License-Identifier: Apache-2.0
"""A JAX program as a list of NumPy calls."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Literal

from quell.core.host.dtypes import key_free
from quell.core.host.parts import (
    CALL_MICROSECONDS,
    COMPILED,
    KEPT,
    LARGEST_ARGUMENT,
    REMEMBERED,
    CompiledPart,
    RememberedPart,
)
from quell.core.host.primitives import RULES
from quell.core.program import live_equations, variables

CALLS = {
    "jit",
    "pjit",
    "closed_call",
    "core_call",
    "remat",
    "remat2",
    "checkpoint",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vmap_call",
}
"""Equations that are nothing but the program within them."""

LARGEST_FOLDED = 2**16
"""Elements of a constant that is computed beforehand."""

EXPECTED_TURNS = 4
"""Of a loop that ends by itself."""

MICROSECONDS, NANOSECONDS_EACH, NANOSECONDS_PER_PRODUCT = 2.5, 2.0, 0.2
"""That a NumPy call takes, and in it each element, and each multiplication where BLAS or LAPACK does them; on a common
processor, to compare work."""

SLOW_CALLS = {
    **{"dot_general": 10.0, "gather": 40.0, "scatter-add": 50.0, "cholesky": 100.0, "triangular_solve": 100.0},
    **{"eigh": 100.0, "qr": 100.0, "householder_product": 100.0, "random_bits": 200.0, "random_fold_in": 80.0},
}
"""Microseconds of calls that are more than one of NumPy."""

CUBES = {"cholesky": 1, "triangular_solve": 1, "qr": 4, "householder_product": 4, "eigh": 10}
"""Multiplications of a factorisation, as a multiple of the cube of its size."""


class Unsupported(NotImplementedError):
    """A program has an equation that NumPy cannot run; the compiler can."""


class TooLong(RuntimeError):
    """A program has taken more work than it may; nothing is lost, since it has done nothing but compute."""


class HostProgram:
    """A program of JAX, run without a compiler.

    Args:
        closed: the program. Calls within it are written out, and what depends on constants alone is computed here.
        most_work: of all runs together; a loop that goes beyond ends as `TooLong`.
        with_parts: whether its compiled parts are compiled, each by itself. Their work is not counted.

    Attributes:
        work: about the microseconds of all runs so far, by number and size of the operations, not by the clock.
        expected_work: of one run, with `EXPECTED_TURNS` of each loop whose number of turns is not known.
        has_open_loops: whether there are such loops.

    Raises:
        Unsupported: where an equation has no rule.
    """

    def __init__(self, closed: ClosedJaxpr, most_work: float = math.inf, *, with_parts: bool = False) -> None:
        """Translate the program."""
        self.work, self.most_work, self.has_open_loops = 0.0, most_work, False
        self.with_parts, self.parts = with_parts, dict[int, CompiledPart | RememberedPart]()
        if closed.effects:
            raise Unsupported("effects")
        if any(isinstance(const, Tracer) for const in closed.consts):
            raise Unsupported("a constant that is computed by another program")
        if any(_is_key(var.aval) for var in closed.jaxpr.outvars):
            raise Unsupported("a result that is a random key")
        self._block = Block(self, closed.jaxpr, [_on_host(const) for const in closed.consts])
        self.expected_work = self._block.expected_work
        self._shapes = [(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.outvars]
        self._seen: dict[int, tuple[Any, Any]] = {}

    def __call__(self, *arguments: Any) -> list[np.ndarray]:
        """Results, as arrays of NumPy."""
        kept = KEPT.get()
        try:
            with np.errstate(all="ignore"):
                found = self._block(self._block.prepared(), [self._argument(*one) for one in enumerate(arguments)])
        except BaseException:
            self.forget()
            raise
        if kept is None:  # nothing keeps the arguments alive
            self.forget()
        else:
            kept.add(self.forget)
        return [np.asarray(one, dtype).reshape(shape) for one, (shape, dtype) in zip(found, self._shapes, strict=True)]

    def forget(self) -> None:
        """Let go of the arguments of the last run, and of what parts remember."""
        self._seen.clear()
        for part in self.parts.values():
            part.forget()

    def _argument(self, number: int, value: Any) -> Any:
        """An argument as an array of NumPy, the same one where it was the same in the last run.

        An array of NumPy that its owner may write to is copied, since a result may be a view of it.
        """
        if isinstance(value, np.ndarray):
            return np.array(value)
        last, view = self._seen.get(number, (None, None))
        if last is not value:
            view = _on_host(value)
            self._seen[number] = value, view
        return view


class Call(NamedTuple):
    """One NumPy call.

    Args:
        function: of the values of some slots.
        operands: those slots.
        results: slots of what it returns, a list; or one slot.
    """

    function: Callable[..., Any]
    operands: tuple[int, ...]
    results: tuple[int, ...] | int


class Block:
    """A program without calls, on slots for its values.

    Args:
        owner: that counts the work.
        jaxpr: of the program.
        consts: values of its constants.
        known: values of its first inputs, which stay the same while it runs again and again; `None` where they are not
            known beforehand. What depends on them alone is computed once.
    """

    def __init__(self, owner: HostProgram, jaxpr: Any, consts: Sequence[Any], known: Sequence[Any] = ()) -> None:
        self.owner, self.once, self.calls = owner, list[Call](), list[Call]()
        self.work_once, self.work, self.loops_work = 0.0, 0.0, 0.0
        self.values: list[Any] = []
        names: dict[Any, int] = {}
        for var, value in zip(jaxpr.constvars, consts, strict=True):
            names[var] = self._slot(value)
        for number, var in enumerate(jaxpr.invars):
            names[var] = self._slot(known[number] if number < len(known) else None)
        slots = [names[var] for var in jaxpr.invars]
        self.fixed = [slot for slot in slots[: len(known)] if self.values[slot] is None]
        self.inputs, self.invariant = slots[len(known) :], set(self.fixed)
        self._add(jaxpr, names, jaxpr.outvars)
        self.outputs = [self._read(atom, names) for atom in jaxpr.outvars]

    def prepared(self, fixed: Sequence[Any] = ()) -> list[Any]:
        """Values of all slots that stay the same in many runs, for those first inputs that were not known."""
        values = self.values.copy()
        for slot, argument in zip(self.fixed, fixed, strict=True):
            values[slot] = argument
        self.owner.work += self.work_once
        return _run(self.once, values)

    def __call__(self, prepared: list[Any], arguments: Sequence[Any]) -> list[Any]:
        """Results, for the other inputs."""
        if self.owner.work > self.owner.most_work:
            raise TooLong
        values = prepared.copy()
        for slot, argument in zip(self.inputs, arguments, strict=True):
            values[slot] = argument
        self.owner.work += self.work
        _run(self.calls, values)
        return [values[slot] for slot in self.outputs]

    @property
    def expected_work(self) -> float:
        """Of one run, with that of the loops within."""
        return self.work_once + self.work + self.loops_work

    def _slot(self, value: Any = None) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _read(self, atom: Any, names: dict[Any, int]) -> int:
        if not isinstance(atom, Literal):
            return names[atom]
        aval: Any = atom.aval
        return self._slot(np.asarray(atom.val, aval.dtype))

    def _add(self, jaxpr: Any, names: dict[Any, int], outputs: Sequence[Any]) -> None:
        """Translate the equations, of a program whose inputs have slots, that some outputs need."""
        live = live_equations(jaxpr, outputs)
        needed = set(variables(outputs)).union(*(variables(equation.invars) for equation in live))
        for equation in live:
            operands = [self._read(atom, names) for atom in equation.invars]
            inner = self._inner(equation, operands)
            if inner is not None:
                closed, operands = inner
                inside = dict(zip(closed.jaxpr.invars, operands, strict=True))
                inside |= {
                    v: self._slot(_on_host(c)) for v, c in zip(closed.jaxpr.constvars, closed.consts, strict=True)
                }
                pairs = zip(equation.outvars, closed.jaxpr.outvars, strict=True)
                results = {own: result for own, result in pairs if own in needed}
                self._add(closed.jaxpr, inside, list(results.values()))
                names |= {own: self._read(result, inside) for own, result in results.items()}
                continue
            names |= {var: self._slot() for var in equation.outvars}
            self._call(equation, operands, [names[var] for var in equation.outvars])

    def _inner(self, equation: Any, operands: list[int]) -> tuple[ClosedJaxpr, list[int]] | None:
        """The program that stands for an equation: that of a call, or of the branch that is always taken."""
        name = equation.primitive.name
        if name in CALLS and self._part(equation) is None:
            found = next(
                equation.params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call") if key in equation.params
            )
            return (found if isinstance(found, ClosedJaxpr) else ClosedJaxpr(found, ())), operands
        if name == "cond" and (which := self.values[operands[0]]) is not None:
            branches = equation.params["branches"]
            return branches[min(max(int(which), 0), len(branches) - 1)], operands[1:]
        return None

    def _part(self, equation: Any) -> str | None:
        """What kind of part an equation calls."""
        name = equation.params.get("name")
        if any(_is_key(var.aval) for var in (*equation.invars, *equation.outvars)):
            return None
        if name == REMEMBERED and all(math.prod(var.aval.shape) <= LARGEST_ARGUMENT for var in equation.invars):
            return name
        return name if name == COMPILED and self.owner.with_parts else None

    def _remembered(self, closed: ClosedJaxpr) -> RememberedPart:
        block = _block(self.owner, closed, [])
        self.loops_work += block.expected_work
        return RememberedPart(functools.partial(block, block.prepared()))

    def _call(self, equation: Any, operands: list[int], results: list[int]) -> None:
        """Add a call, or what it returns where all operands are known."""
        name, known = equation.primitive.name, [self.values[slot] for slot in operands]
        part = self._part(equation)
        if part is not None:  # one for all equations that call the same program
            closed, parts = equation.params["jaxpr"], self.owner.parts
            if id(closed) not in parts:
                parts[id(closed)] = CompiledPart(closed) if part == COMPILED else self._remembered(closed)
            function = parts[id(closed)]
            self.work += CALL_MICROSECONDS if part == COMPILED else MICROSECONDS
        elif name in LOOPS:
            function, expected = LOOPS[name](self.owner, equation, known)
            self.loops_work += expected
        else:
            rule = RULES.get(name)
            if rule is None or any(_is_foreign(var.aval) for var in equation.outvars):
                raise Unsupported(f"`{name}`")
            try:
                function = rule(equation)
            except KeyError as error:
                raise Unsupported(f"`{name}`: {error}") from error
            size = max((math.prod(var.aval.shape) for var in (*equation.invars, *equation.outvars)), default=1)
            if size <= LARGEST_FOLDED and all(value is not None for value in known):
                with np.errstate(all="ignore"):
                    found = function(*known)
                for slot, value in zip(results, found if _returns_list(equation) else [found], strict=True):
                    self.values[slot] = value
                return
            nanoseconds = NANOSECONDS_EACH * size + NANOSECONDS_PER_PRODUCT * _products(equation)
            work = SLOW_CALLS.get(name, MICROSECONDS) + 1e-3 * nanoseconds
            if all(v is not None or slot in self.invariant for slot, v in zip(operands, known, strict=True)):
                self.invariant.update(results)
                self.once.append(_call(equation, function, operands, results))
                self.work_once += work
                return
            self.work += work
        self.calls.append(_call(equation, function, operands, results))


def _call(equation: Any, function: Callable[..., Any], operands: list[int], results: list[int]) -> Call:
    return Call(function, tuple(operands), tuple(results) if _returns_list(equation) else results[0])


def _run(calls: list[Call], values: list[Any]) -> list[Any]:
    """Make calls, which fill slots."""
    for function, operands, results in calls:
        found = function(*[values[slot] for slot in operands])
        if type(results) is int:
            values[results] = found
        else:
            for slot, value in zip(results, found, strict=True):  # pyright: ignore[reportArgumentType]
                values[slot] = value
    return values


Loop = tuple[Callable[..., list[Any]], float]
"""A loop or a branch as one call, and its expected work."""


def _while(owner: HostProgram, equation: Any, known: list[Any]) -> Loop:
    params = equation.params
    tests, bodies = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    owner.has_open_loops = True
    test = _block(owner, params["cond_jaxpr"], known[:tests])
    body = _block(owner, params["body_jaxpr"], known[tests:bodies])
    of_test, of_body = _unknown(known, 0, tests), _unknown(known, tests, bodies)

    def run(*operands: Any) -> list[Any]:
        to_test, to_body = [operands[n] for n in of_test], [operands[n] for n in of_body]
        carry = operands[bodies:]
        test_values, body_values = test.prepared(to_test), body.prepared(to_body)
        while np.any(is_going := test(test_values, carry)[0]):
            after = body(body_values, carry)
            carry = (
                after if np.ndim(is_going) == 0 else [_kept(is_going, *pair) for pair in zip(after, carry, strict=True)]
            )
        return list(carry)

    return run, EXPECTED_TURNS * (test.expected_work + body.expected_work)


def _kept(is_going: Any, after: Any, before: Any) -> Any:
    """Of a loop in a batch, those that go on move on."""
    return np.where(is_going.reshape(is_going.shape + (1,) * (np.ndim(after) - is_going.ndim)), after, before)


def _scan(owner: HostProgram, equation: Any, known: list[Any]) -> Loop:
    params = equation.params
    length, (consts, carried) = params["length"], _scan_counts(params)
    first = consts + carried
    body = _block(owner, params["jaxpr"], known[:consts])
    of_body = _unknown(known, 0, consts)
    order = range(length)[::-1] if params["reverse"] else range(length)
    stacked = [(var.aval.shape, key_free(var.aval.dtype)) for var in equation.outvars[carried:]]

    def run(*operands: Any) -> list[Any]:
        to_body, carry, rows = [operands[n] for n in of_body], list(operands[consts:first]), operands[first:]
        outs, values = [np.empty(shape, dtype) for shape, dtype in stacked], body.prepared(to_body)
        for number in order:
            found = body(values, [*carry, *[row[number] for row in rows]])
            carry = found[: len(carry)]
            for out, value in zip(outs, found[len(carry) :], strict=True):
                out[number] = value
        return [*carry, *outs]

    return run, length * body.expected_work


def _scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Arrays that every turn sees, and that go from turn to turn."""
    if "ft_in" in params:  # from JAX 0.11 on
        consts, carried, _ = params["ft_in"].unpack()
        return len(consts), len(carried)
    return params["num_consts"], params["num_carry"]


def _cond(owner: HostProgram, equation: Any, known: list[Any]) -> Loop:
    branches = [_block(owner, branch, known[1:]) for branch in equation.params["branches"]]
    unknown, last = _unknown(known, 1, len(known)), len(branches) - 1

    def run(*operands: Any) -> list[Any]:
        branch = branches[min(max(int(operands[0]), 0), last)]
        return branch(branch.prepared([operands[n] for n in unknown]), ())

    return run, max(branch.expected_work for branch in branches)


LOOPS: dict[str, Callable[[HostProgram, Any, list[Any]], Loop]] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
}


def _block(owner: HostProgram, closed: ClosedJaxpr, known: list[Any]) -> Block:
    return Block(owner, closed.jaxpr, [_on_host(const) for const in closed.consts], known)


def _unknown(known: list[Any], first: int, last: int) -> list[int]:
    return [number for number in range(first, last) if known[number] is None]


def _returns_list(equation: Any) -> bool:
    return equation.primitive.multiple_results


def _products(equation: Any) -> int:
    """Multiplications of a product of arrays or of a factorisation; those of other equations are of elements."""
    name = equation.primitive.name
    if name in CUBES:  # the last operand of a solve is its right-hand side
        return CUBES[name] * math.prod(equation.invars[-1].aval.shape) * equation.invars[0].aval.shape[-1]
    if name != "dot_general":
        return 0
    ((summed, _), _) = equation.params["dimension_numbers"]
    return math.prod(equation.outvars[0].aval.shape) * math.prod(equation.invars[0].aval.shape[d] for d in summed)


def _is_key(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)


def _is_foreign(aval: Any) -> bool:
    """Whether NumPy has no such numbers: half precision of brains, complex ones that no rule was made for."""
    dtype = key_free(aval.dtype)
    return dtype.kind not in "biuf"


def _on_host(value: Any) -> Any:
    """An array of NumPy; of random keys, their 64 bits."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        words = np.asarray(jax.random.key_data(value)).astype(np.uint64)
        return (words[..., 0] << np.uint64(32)) | words[..., 1]
    return np.asarray(value)
