# SPDX-License-Identifier: Apache-2.0
"""Programs that NumPy runs, until the compiler would have been the shorter way."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun

from quell.core.compilation import full_precision_products, quick_jit, quick_program
from quell.core.compile_clock import COMPILE_CLOCK
from quell.core.host import HostProgram
from quell.core.host.parts import COMPILED, static_mark
from quell.core.lapack import looped, one_matrix_at_a_time
from quell.core.program import equations

WORTH_MICROSECONDS = 2000.0
"""Of work by NumPy for each equation, after which a program is compiled: what that takes."""

EXPECTED_SHARE = 0.15
"""Of them, beyond which a program with loops of unknown length is not begun: fits take several times the work that is
expected of one run."""

MOST_PROGRAMS = 256
"""That are kept, those of the latest calls."""

_ARRAY = object()
"""The place of an array among what is static."""


def tiered_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function as NumPy calls, and compile it where its runs have taken as long as that would.

    The first answer of a small program is there before a compiler would have begun; a program with a long loop or
    large arrays is compiled at once, and one that is called often in the end. What is run where depends on the program
    and on the calls before, never on the clock. Results are the same up to rounding.

    Args:
        function: of any arguments; what is not an array is static. It is traced once for all arrays of the same shapes.
    """
    compiled = quick_jit(function)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        found, tree = jax.tree.flatten(args)
        leaves = [leaf for leaf in found if eqx.is_array(leaf)]
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return one_matrix_at_a_time(function)(*args)  # a part of another program
        static = tuple(_ARRAY if eqx.is_array(leaf) else leaf for leaf in found)
        if _is_special() or not all(map(_is_here, leaves)) or not all(isinstance(one, Hashable) for one in static):
            return compiled(*args)
        kinds = tuple(map(_kind, leaves))
        with full_precision_products():
            return _program(function, tree, kinds, static, tuple(map(static_mark, static)), _config())(leaves)

    return call


def tiered_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run like `tiered_jit` a closure that is called once; its program is not kept."""

    def call(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return one_matrix_at_a_time(function)(*arguments)
        leaves = [leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for leaf in leaves]
        with full_precision_products():
            if _is_special() or not all(map(_is_here, leaves)):
                return jax.jit(one_matrix_at_a_time(function))(*arguments)
            kinds = tuple(map(_kind, leaves))
            return TieredProgram(lambda *given: function(*jax.tree.unflatten(tree, given)), kinds)(leaves)

    return call


class TieredProgram:
    """A program for arrays of some shapes.

    Args:
        function: of the arrays.
        kinds: shape, dtype and weakness of the dtype of each.
    """

    def __init__(self, function: Callable[..., Any], kinds: tuple[tuple[Any, ...], ...]) -> None:
        """Trace the function."""
        kept = []

        def of_arrays(*leaves: Any) -> Any:
            out, rest = eqx.partition(function(*leaves), eqx.is_array)
            kept.append(rest)
            return out

        shapes = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in kinds]
        self.closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*shapes)
        self.tree, self.rest = jax.tree.structure(shape), kept[-1]
        self.most_work = WORTH_MICROSECONDS * sum(1 for _ in equations(self.closed.jaxpr))
        self.host = self._host() or (self._host(with_parts=True) if self._has_parts() else None)

    def _has_parts(self) -> bool:
        """Whether parts may be compiled by themselves: not on an accelerator, which would wait for NumPy each time."""
        is_cpu = jax.default_backend() == "cpu"
        return is_cpu and any(one.params.get("name") == COMPILED for one in equations(self.closed.jaxpr))

    def _host(self, *, with_parts: bool = False) -> HostProgram | None:
        """The program for NumPy, where it can run it and is not expected to take longer than the compiler."""
        try:
            host = HostProgram(self.closed, self.most_work, with_parts=with_parts)
        except Exception:  # what NumPy cannot do, or not with these constants, the compiler can
            return None
        share = EXPECTED_SHARE if host.has_open_loops else 1.0
        return host if host.expected_work <= share * self.most_work else None

    def __call__(self, leaves: list[Any]) -> Any:
        """The results of the function."""
        found = self._on_host(leaves)
        found = self._compiled_results(leaves) if found is None else found
        arrays = jax.tree.unflatten(self.tree, found)
        return eqx.combine(arrays, self.rest) if jax.tree.leaves(self.rest) else arrays

    def _on_host(self, leaves: list[Any]) -> list[Any] | None:
        """The results by NumPy; `None` where the compiler is the shorter way, from now on."""
        if self.host is None:
            return None
        try:
            return jax.device_put(self.host(*leaves))
        except Exception:  # it is too long, or NumPy refuses a number that the compiler does not
            self.host = None
            return None

    def _compiled_results(self, leaves: list[Any]) -> Any:
        if "compiled" in self.__dict__:
            return self.compiled(*leaves)
        with COMPILE_CLOCK.compiling():
            return self.compiled(*leaves)

    @functools.cached_property
    def compiled(self) -> Callable[..., Any]:
        """By XLA."""
        if any(isinstance(const, Tracer) for const in self.closed.consts):  # a part of the program that computes them
            return jaxpr_as_fun(looped(self.closed) if jax.default_backend() == "cpu" else self.closed)
        return quick_program(self.closed)


@functools.lru_cache(maxsize=MOST_PROGRAMS)
def _program(
    function: Callable[..., Any],
    tree: Any,
    kinds: tuple[tuple[Any, ...], ...],
    static: tuple[Any, ...],
    marks: tuple[Any, ...],
    config: tuple[Any, ...],
) -> TieredProgram:
    del marks, config  # they tell apart what compares equal

    def of_arrays(*leaves: Any) -> Any:
        arrays = iter(leaves)
        return function(*jax.tree.unflatten(tree, [next(arrays) if one is _ARRAY else one for one in static]))

    return TieredProgram(of_arrays, kinds)


def _is_here(leaf: Any) -> bool:
    """Whether an array is on the default device, where results will be."""
    if not isinstance(leaf, jax.Array):
        return True
    default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if default is None or isinstance(default, str):
        default = jax.local_devices(backend=default)[0]
    return leaf.sharding.device_set == {default}


def _kind(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)  # keys have none
    return leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype), False


def _is_special() -> bool:
    """Whether the user wants every operation to be JAX's own, other random bits, or a mesh of devices."""
    config: Any = jax.config
    is_watched = config.jax_debug_nans or config.jax_debug_infs or config.jax_disable_jit
    return is_watched or not config.jax_threefry_partitionable or not jax.sharding.get_abstract_mesh().empty


def _config() -> tuple[Any, ...]:
    """What a trace depends on beside its arguments."""
    config: Any = jax.config
    return config.jax_enable_x64, config.jax_default_matmul_precision, jax.default_backend()
