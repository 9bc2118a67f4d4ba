# SPDX-License-Identifier: Apache-2.0
"""Many processes: what they have to agree on, and who reads and writes files.

All of them run the same program on their share of the data, and each must take part in every sum over devices. So a
decision that depends on the clock or on a file is made by the first process, and the others hear of it.
"""

from pathlib import Path

import jax
import numpy as np

NOT_THERE = -1


class ProcessLost(RuntimeError):
    """A step could not be taken because another process has ended."""


def is_first() -> bool:
    """Whether this process writes files and shows progress."""
    return jax.process_index() == 0


def are_several() -> bool:
    """Whether there are other processes."""
    return jax.process_count() > 1


def agree(number: int) -> int:
    """The first process's number, in all processes."""
    return int(_broadcast(np.asarray(number, np.int32))) if are_several() else number


def is_there(path: Path) -> bool:
    """Whether the first process sees a file."""
    return bool(agree(path.exists()))


def read_shared(path: Path) -> bytes:
    """The bytes of a file as the first process sees them; the others need no access to its disk."""
    if not are_several():
        return path.read_bytes()
    raw = path.read_bytes() if is_first() and path.exists() else None
    length = agree(NOT_THERE if raw is None else len(raw))
    if length == NOT_THERE:
        raise FileNotFoundError(f"{path} was not found by the first process.")
    sent = np.zeros(length, np.uint8) if raw is None else np.frombuffer(raw, np.uint8)
    return _broadcast(sent).tobytes()


def lost(error: Exception, where: str) -> ProcessLost:
    """The error for a step that failed because another process has ended, or so it seems.

    Args:
        error: of the step.
        where: the fit is kept, and how to go on.
    """
    first = str(error).strip().split("\n")[0]
    here = f"process {jax.process_index()} of {jax.process_count()}"
    return ProcessLost(
        f"A step failed in {here}, most likely because another process has ended ({first}). All of them were needed. "
        f"{where}"
    )


def _broadcast(array: np.ndarray) -> np.ndarray:
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.broadcast_one_to_all(array))
