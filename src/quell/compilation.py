# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that start soon."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def quick_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile as `eqx.filter_jit` does, in about half the time on a CPU.

    At optimisation level 1 LLVM needs about half the time, and our steps, whose work is in library calls and
    fused loops, run as fast to within a few percent.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return _jitted(function, jax.default_backend())(*args)

    return call


@functools.cache
def _jitted(function: Callable[..., Any], backend: str) -> Any:
    options: dict[str, Any] = {"xla_backend_optimization_level": 1} if backend == "cpu" else {}
    return eqx.filter_jit(function, compiler_options=options)  # pyright: ignore[reportCallIssue]
