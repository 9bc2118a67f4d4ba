# SPDX-License-Identifier: Apache-2.0
"""Many processes: what they must agree on, and which of them reads and writes files.

All processes of a fit run the same program on their shard of the data, and each must take part in every sum over
devices. So a decision that depends on the clock or on a file is made by the first process and broadcast to the others.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from quell.core.checks import first_line

FAILED = -1


class ProcessLost(RuntimeError):
    """A step failed because another process has ended."""


def is_first() -> bool:
    """Whether this process writes files and shows progress."""
    return not are_several() or jax.process_index() == 0


def are_several() -> bool:
    """Whether other processes take part in this fit: there is an active mesh, and it has devices of all of them."""
    return not jax.sharding.get_abstract_mesh().empty and jax.process_count() > 1


def agree(number: int) -> int:
    """The first process's number, in all processes."""
    return int(_broadcast(np.asarray(number, np.int32))) if are_several() else number


def first_says(ask: Callable[[], bool]) -> bool:
    """The first process's answer, in all processes; if it raises, all of them stop."""
    if not are_several():
        return ask()
    failed, answer = None, 0
    if is_first():
        try:
            answer = int(ask())
        except Exception as error:  # raised below, once the other processes know
            failed, answer = error, FAILED
    answer = agree(answer)
    if failed is not None:
        raise failed
    if answer == FAILED:
        raise ValueError("The first process failed; see its error message.")
    return bool(answer)


def first_does(action: Callable[[], None]) -> None:
    """Run an action in the first process; if it raises, all processes stop."""
    first_says(lambda: action() is not None)


def gather(numbers: np.ndarray) -> np.ndarray:
    """The numbers of every process, in all processes, as the rows of a matrix."""
    from jax.experimental import multihost_utils

    with _connected("See the errors of the other processes, and restart all of them."):
        return np.reshape(multihost_utils.process_allgather(numbers), (-1, numbers.size))


def is_there(path: Path) -> bool:
    """Whether the first process sees a file."""
    return bool(agree(path.exists()))


def read_shared(path: Path) -> bytes:
    """The bytes of a file as the first process sees them; the others need no access to its disk."""
    if not are_several():
        return path.read_bytes()
    raw = path.read_bytes() if is_first() else b""
    high, low = (agree(part) for part in divmod(len(raw), 2**30))  # a length may exceed 32 bits
    sent = np.frombuffer(raw, np.uint8) if is_first() else np.zeros(high * 2**30 + low, np.uint8)
    return _broadcast(sent).tobytes()


def wait_for_all(advice: str) -> None:
    """Wait until every process has reached this call.

    Args:
        advice: how to recover if one of them does not.
    """
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        with _connected(advice):
            sync_global_devices("quell")


def process_lost(error: Exception, advice: str) -> ProcessLost:
    """The error for a step that failed, most likely because another process has ended.

    Args:
        error: of the step.
        advice: how to recover.
    """
    return ProcessLost(
        f"A step failed in {_this_process()}, most likely because another process has ended ({first_line(error)}). "
        f"{advice}"
    )


@contextlib.contextmanager
def hint_if_killed(advice: str, *, several: bool) -> Iterator[None]:
    """Print a recovery hint if this process is killed.

    JAX aborts a process when it finds that another one has died, and no Python code runs any more. So a small child
    process waits for the end of this one, and prints the hint unless it was told that all went well.

    Args:
        advice: how to recover.
        several: whether other processes take part; a single one needs no hint.
    """
    if not several:
        yield
        return
    hint = f"quell: {_this_process()} was killed, most likely because another process has ended. {advice}"
    watcher = subprocess.Popen([sys.executable, "-c", _WATCH, hint], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watcher.communicate(b"well")


_WATCH = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"


def _this_process() -> str:
    return f"process {jax.process_index()} of {jax.process_count()}"


def _broadcast(array: np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils

    with _connected():
        return np.asarray(multihost_utils.broadcast_one_to_all(array))


@contextlib.contextmanager
def _connected(advice: str = "") -> Iterator[None]:
    """Turn errors of a lost connection, for which JAX has no class of its own, into `ProcessLost`."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise process_lost(error, advice) from error
