# SPDX-License-Identifier: Apache-2.0
"""How a command meets the other processes of its job."""

import contextlib
import re
from collections.abc import Iterator
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

from quell.core.processes import ProcessLost

Coordinator = Annotated[
    str | None,
    typer.Option(help="HOST:PORT where the first of several processes listens, or auto on a cluster that JAX knows."),
]
NumProcesses = Annotated[int | None, typer.Option(help="How many processes there are, with --coordinator HOST:PORT.")]
ProcessId = Annotated[int | None, typer.Option(help="The number of this one, from 0, with --coordinator HOST:PORT.")]

HEARTBEAT_SECONDS = 20
"""A process that is silent for so long is taken for dead."""


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Say in words that another process was lost."""
    try:
        yield
    except ProcessLost as error:
        Console(stderr=True).print(escape(str(error)), soft_wrap=True)
        raise typer.Exit(code=1) from None


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Meet the other processes; alone where no coordinator is named.

    Args:
        coordinator: `HOST:PORT`, or `auto`.
        num_processes: how many, with an address.
        process_id: which of them this is.
    """
    is_named = coordinator is not None and coordinator != "auto"
    if is_named != (num_processes is not None) or is_named != (process_id is not None):
        raise ValueError(
            f"`--coordinator` was given as {coordinator}, `--num-processes` as {num_processes} and `--process-id` as "
            f"{process_id}. All three, `--coordinator auto` alone, or none of them were needed. "
            "Type for example `--coordinator localhost:7777 --num-processes 2 --process-id 0`."
        )
    if coordinator is None:
        return
    if is_named and not re.fullmatch(r".+:\d+", coordinator):
        raise ValueError(
            f"`--coordinator` was given as {coordinator}. A host and a port were needed. "
            "Type for example `--coordinator localhost:7777`."
        )
    jax.config.update("jax_enable_preemption_service", False)  # it would swallow SIGTERM
    try:
        jax.distributed.initialize(
            coordinator if is_named else None,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().split("\n")[0]
        raise ValueError(
            f"`--coordinator` was given as {coordinator}, and the processes did not meet ({first}). An address that "
            "all of them reach, or a cluster that JAX knows, was needed. Start all of them within five minutes, each "
            "with a `--process-id` of its own."
        ) from None
