# SPDX-License-Identifier: Apache-2.0
"""Properties of Equinox modules that are computed once."""

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

Module = TypeVar("Module")
Value = TypeVar("Value")


def cached_beside(compute: Callable[[Module], Value]) -> Callable[[Module], Value]:
    """Compute a value of a module once, and keep it as long as the module lives; for use below `@property`.

    `functools.cached_property` writes into the module, and Equinox counts a module's attributes into its tree
    structure: all programs that were compiled for it would be compiled again. Here nothing is written.
    """
    values: dict[int, Value] = {}

    @functools.wraps(compute)
    def cached(module: Module) -> Value:
        if id(module) not in values:
            values[id(module)] = compute(module)
            weakref.finalize(module, values.pop, id(module)).atexit = False
        return values[id(module)]

    return cached
