# SPDX-License-Identifier: Apache-2.0
"""Options and set-up for several processes that share one job."""

import contextlib
import re
from collections.abc import Iterator
from typing import Annotated

import jax
import typer
from rich.console import Console
from rich.markup import escape

from quell.core.checks import first_line
from quell.core.processes import ProcessLost

Coordinator = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of the first of several processes, or auto on a cluster that JAX supports."),
]
NumProcesses = Annotated[int | None, typer.Option(help="Number of processes, with --coordinator HOST:PORT.")]
ProcessId = Annotated[int | None, typer.Option(help="Index of this process, from 0, with --coordinator HOST:PORT.")]

HEARTBEAT_SECONDS = 20
"""A process without a heartbeat for so long is taken for dead."""


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Print one line instead of a traceback if another process was lost."""
    try:
        yield
    except ProcessLost as error:
        Console(stderr=True).print(escape(str(error)), soft_wrap=True)
        raise typer.Exit(code=1) from None


def join(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    """Connect to the other processes; without a coordinator there are none.

    Args:
        coordinator: `HOST:PORT`, or `auto`.
        num_processes: with an address.
        process_id: of this process, with an address.
    """
    is_named = coordinator is not None and coordinator != "auto"
    if is_named != (num_processes is not None) or is_named != (process_id is not None):
        raise ValueError(
            "`--coordinator HOST:PORT`, `--num-processes` and `--process-id` must be given together, and "
            f"`--coordinator auto` alone, got {coordinator}, {num_processes} and {process_id}; try "
            "`--coordinator localhost:7777 --num-processes 2 --process-id 0`."
        )
    if coordinator is None:
        return
    if is_named and not re.fullmatch(r".+:\d+", coordinator):
        raise ValueError(f"`--coordinator` must be HOST:PORT, got {coordinator}; try `--coordinator localhost:7777`.")
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM
    try:
        jax.distributed.initialize(
            coordinator if is_named else None,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (RuntimeError, ValueError) as error:
        first = first_line(error)
        raise ValueError(
            f"`--coordinator` must be an address that all processes reach, or a cluster that JAX supports, got "
            f"{coordinator} ({first}); start all processes within five minutes, each with its own `--process-id`."
        ) from None
