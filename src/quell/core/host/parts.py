# SPDX-License-Identifier: Apache-2.0
"""Parts of a program that NumPy does not run as it runs the rest: those worth a compiler, and those that come again."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from quell.core.compilation import quick_program
from quell.core.compile_clock import COMPILE_CLOCK

COMPILED, REMEMBERED = "compiled_part", "remembered_part"
"""Names of the calls that are parts."""

CALL_MICROSECONDS = 150.0
"""That NumPy and JAX take around the call of a compiled part."""

LARGEST_ARGUMENT = 8
"""Elements of an argument of a part that is remembered."""

MOST_REMEMBERED = 2**22
"""Elements of results that are remembered."""

KEPT: ContextVar[set[Callable[[], None]] | None] = ContextVar("KEPT", default=None)
"""How to let go of what programs remember between their runs; `None` where they do not."""


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Programs that run within remember arguments and results until the end, and elsewhere until they have run.

    A step of a fit begins with what the one before has computed last, and most steps are runs of their own.
    """
    kept = set[Callable[[], None]]()
    token = KEPT.set(kept)
    try:
        yield
    finally:
        KEPT.reset(token)
        for forget in kept:
            forget()


def compiled_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as the work of a program: where that is too long for NumPy, it may be compiled by itself.

    Where the program is compiled as a whole, or there is none, this changes nothing. Calls with arguments of the same
    shapes are one part.

    Args:
        function: of any arguments; what is not an array is static.
    """
    return _marked(function, COMPILED)


def remembered_part(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function of few numbers: where NumPy runs it, results are kept for the next call with the same ones.

    Where the program is compiled, or there is none, this changes nothing.

    Args:
        function: of any arguments; what is not an array is static.
    """
    return _marked(function, REMEMBERED)


def static_mark(value: Any) -> Any:
    """What tells apart 1, 1.0 and `True`, and zeros of either sign, which compare equal as static arguments."""
    return str(value) if isinstance(value, float) else type(value)


def _marked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    jitted = eqx.filter_jit(_named(lambda marks, *args: function(*args), name))  # marks are a part of its key

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        static = [leaf for leaf in jax.tree.leaves(args) if not eqx.is_array(leaf)]
        return jitted(tuple(map(static_mark, static)), *args)

    return call


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


class CompiledPart:
    """A part that XLA compiles at its first call; results of the last are kept for one with the same arguments.

    Args:
        closed: its program.
    """

    def __init__(self, closed: ClosedJaxpr) -> None:
        """Compile nothing yet. An operand that is a result too, as data are, is passed on and not copied."""
        outputs, places = closed.jaxpr.outvars, {id(var): at for at, var in enumerate(closed.jaxpr.invars)}
        self.passed = [places.get(id(var)) for var in outputs]
        made = [var for var, at in zip(outputs, self.passed, strict=True) if at is None]
        self.closed = closed.replace(jaxpr=closed.jaxpr.replace(outvars=made))
        self.forget()

    def forget(self) -> None:
        """Let go of the arguments and the results of the last call."""
        self._last: tuple[tuple[Any, ...], list[np.ndarray]] | None = None
        self._sent: list[Any] = [(None, None)] * len(self.closed.jaxpr.invars)

    def __call__(self, *operands: Any) -> list[np.ndarray]:
        """Results, as arrays of NumPy."""
        last = self._last  # another thread may replace it
        if last is not None and all(map(_are_same, operands, last[0])):
            return last[1]
        self._last = last = None
        arguments = [self._argument(number, operand) for number, operand in enumerate(operands)]
        with contextlib.nullcontext() if "_run" in self.__dict__ else COMPILE_CLOCK.compiling():
            made = iter(self._run(*arguments))
        found = [np.asarray(next(made) if at is None else operands[at]) for at in self.passed]
        self._last = operands, found
        return found

    def _argument(self, number: int, operand: Any) -> Any:
        """Data are the same array in every call: from the second on they are on the device."""
        last, sent = self._sent[number]
        if last is not operand:
            self._sent[number] = (operand, None)
            return operand
        if sent is None:
            sent = jax.device_put(operand)
            self._sent[number] = (operand, sent)
        return sent

    @functools.cached_property
    def _run(self) -> Callable[..., Any]:
        return quick_program(self.closed)


def _are_same(one: Any, other: Any) -> bool:
    """Whether two arrays, or numbers, of the same shape and type are the same, to the last bit."""
    return one is other or np.array_equal(np.ravel(one).view(np.uint8), np.ravel(other).view(np.uint8))


class RememberedPart:
    """A part whose results are kept, as many as there is room for.

    Args:
        run: it, by NumPy.
    """

    def __init__(self, run: Callable[[tuple[Any, ...]], list[Any]]) -> None:
        """Remember nothing yet."""
        self.run = run
        self.forget()

    def forget(self) -> None:
        """Let go of all results."""
        self._kept, self._size = dict[bytes, list[Any]](), 0

    def __call__(self, *operands: Any) -> list[Any]:
        """Results, of this call or of an earlier one."""
        key = b"".join(np.asarray(operand).tobytes() for operand in operands)
        if key in self._kept:
            return self._kept[key]
        found = self.run(operands)
        size = sum(np.size(one) for one in found)
        if self._size + size > MOST_REMEMBERED:  # of rounds before, or of one that is too long to be remembered
            self.forget()
        if size <= MOST_REMEMBERED:
            self._kept[key], self._size = found, self._size + size
        return found
