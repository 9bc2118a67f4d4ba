# SPDX-License-Identifier: Apache-2.0
"""Compilation in a third of the time, of programs that cannot dead-lock."""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from quell.core.lapack import looped, one_matrix_at_a_time


def quick_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile like `eqx.filter_jit`, in about a third of the time on a CPU.

    At optimisation level 1 and without the emitters that lower each fusion through MLIR, compilation is two to three
    times faster, and our steps, whose work is in library calls and fused loops, run as fast to within a few percent.
    Batched LAPACK calls run one matrix at a time, because several at once may wait for each other for ever.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        with full_precision_products():
            return _jitted(function, jax.default_backend())(*args)

    return call


def quick_lower(function: Callable[..., Any], *args: Any) -> Any:
    """Trace and lower for arguments of these shapes; the result's `compile()` may be called from any thread."""
    with full_precision_products():
        return _jitted(function, jax.default_backend()).lower(*args)


def full_precision_products() -> contextlib.AbstractContextManager[Any]:
    """A context of tracing: products of matrices in the precision of their factors, where the user has not chosen one.

    JAX lets an accelerator round these to ten bits or fewer: of a million rows a fit then ended 0.1 nats from its
    optimum. What is traced as a part of the user's own program is as that says.

    Cost: of products that are limited by arithmetic, and not by memory, several times their time on tensor cores.
    """
    config: Any = jax.config
    is_rounded = jax.default_backend() != "cpu" and config.jax_default_matmul_precision is None
    return jax.default_matmul_precision("highest") if is_rounded else contextlib.nullcontext()


def quick_program(closed: ClosedJaxpr) -> Callable[..., Any]:
    """A traced program, compiled in that way when it is first called."""
    backend = jax.default_backend()
    closed = looped(closed) if backend == "cpu" else closed
    return jax.jit(jaxpr_as_fun(closed), compiler_options=quick_options(backend))


@functools.cache
def _jitted(function: Callable[..., Any], backend: str) -> Any:
    safe = one_matrix_at_a_time(function) if backend == "cpu" else function
    return eqx.filter_jit(safe, compiler_options=quick_options(backend))  # pyright: ignore[reportCallIssue]


@functools.cache
def quick_options(backend: str) -> dict[str, Any]:
    """Compiler options for a short compilation; options that the user set in `XLA_FLAGS` are not touched."""
    if backend != "cpu":
        return {}
    options: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in options.items() if name not in flags and _is_known(name, value)}


def _is_known(name: str, value: Any) -> bool:
    """XLA's options come and go with its versions; one that is missing costs compile time only."""
    try:
        jax.jit(lambda x: x, compiler_options={name: value}).lower(0.0).compile()
    except RuntimeError:
        return False
    return True
