# SPDX-License-Identifier: Apache-2.0
"""Many processes: what they have to agree on, and who reads and writes files.

All that share a fit run the same program on their part of the data, and each must take part in every sum over devices.
So a decision that depends on the clock or on a file is made by the first process, and the others hear of it.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

NOT_THERE = -1
FAILED = -1


class ProcessLost(RuntimeError):
    """A step could not be taken because another process has ended."""


def is_first() -> bool:
    """Whether this process writes files and shows progress."""
    return not are_several() or jax.process_index() == 0


def are_several() -> bool:
    """Whether other processes take part in this fit: a mesh is in use, and it has devices of all of them."""
    return not jax.sharding.get_abstract_mesh().empty and jax.process_count() > 1


def agree(number: int) -> int:
    """The first process's number, in all processes."""
    return int(_broadcast(np.asarray(number, np.int32))) if are_several() else number


def first_says(ask: Callable[[], bool]) -> bool:
    """The answer of the first process, in all of them; where it fails, no process goes on."""
    if not are_several():
        return ask()
    failed, answer = None, 0
    if is_first():
        try:
            answer = int(ask())
        except Exception as error:  # handed on below, after the others know
            failed, answer = error, FAILED
    answer = agree(answer)
    if failed is not None:
        raise failed
    if answer == FAILED:
        raise ValueError("The first process could not go on. Look at what it says.")
    return bool(answer)


def first_does(action: Callable[[], None]) -> None:
    """Do something in the first process; where it fails, no process goes on."""
    first_says(lambda: action() is not None)


def gather(numbers: np.ndarray) -> np.ndarray:
    """The numbers of every process, in all of them, as the rows of a matrix."""
    from jax.experimental import multihost_utils

    with _connected("Look at what the others say, and start all of them again."):
        return np.reshape(multihost_utils.process_allgather(numbers), (-1, numbers.size))


def is_there(path: Path) -> bool:
    """Whether the first process sees a file."""
    return bool(agree(path.exists()))


def read_shared(path: Path) -> bytes:
    """The bytes of a file as the first process sees them; the others need no access to its disk."""
    if not are_several():
        return path.read_bytes()
    raw = path.read_bytes() if is_first() and path.exists() else None
    high, low = (agree(part) for part in divmod(NOT_THERE if raw is None else len(raw), 2**30))
    if (length := high * 2**30 + low) == NOT_THERE:
        raise FileNotFoundError(f"{path} was not found by the first process.")
    sent = np.zeros(length, np.uint8) if raw is None else np.frombuffer(raw, np.uint8)
    return _broadcast(sent).tobytes()


def wait_for_all(advice: str) -> None:
    """Wait until every process has come here.

    Args:
        advice: how to go on, where one of them does not come.
    """
    if jax.process_count() > 1:
        from jax.experimental.multihost_utils import sync_global_devices

        with _connected(advice):
            sync_global_devices("quell")


def lost(error: Exception, advice: str) -> ProcessLost:
    """The error for a step that failed because another process has ended, or so it seems.

    Args:
        error: of the step.
        advice: how to go on.
    """
    first = str(error).strip().split("\n")[0]
    return ProcessLost(
        f"A step failed in {_here()}, most likely because another process has ended ({first}). All of them were "
        f"needed. {advice}"
    )


@contextlib.contextmanager
def last_words(advice: str, *, several: bool) -> Iterator[None]:
    """Have it said in plain words when this process is ended from outside.

    JAX aborts a process when it finds that another one has died, and no Python code runs any more. So a small process
    waits for the end of this one, and says how to go on unless it was told that all went well.

    Args:
        advice: how to go on.
        several: whether other processes take part; alone there is nothing to wait for.
    """
    if not several:
        yield
        return
    text = (
        f"quell: {_here()} ended before its work did, most likely because another process had ended. All of them were "
        f"needed. {advice}"
    )
    watcher = subprocess.Popen([sys.executable, "-c", _WATCH, text], stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        watcher.communicate(b"well")


_WATCH = "import sys; sys.stdin.buffer.read() or print(sys.argv[1], file=sys.stderr)"


def _here() -> str:
    return f"process {jax.process_index()} of {jax.process_count()}"


def _broadcast(array: np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils

    with _connected():
        return np.asarray(multihost_utils.broadcast_one_to_all(array))


@contextlib.contextmanager
def _connected(advice: str = "") -> Iterator[None]:
    """JAX has no error of its own for a connection that is gone."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise lost(error, advice) from error
