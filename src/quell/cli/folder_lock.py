# SPDX-License-Identifier: Apache-2.0
"""A lock file: one process at a time works in a folder."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, and remove it at the end; one that a dead process of this host left is ignored.

    Args:
        path: of the lock file, in a folder that exists.
    """
    _take(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _take(path: Path) -> None:
    """Create the file, which only one of several processes can."""
    if _is_stale(path):
        path.unlink(missing_ok=True)
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        raise ValueError(
            f"{path.parent} must have one `quell fit` at a time, got {_holder(path)}; wait for it, or delete {path} if "
            "it has ended."
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({"pid": os.getpid(), "host": socket.gethostname()}, file)


def _is_stale(path: Path) -> bool:
    """Whether the process that wrote it was on this host, and has ended."""
    pid, host = _read(path)
    return host == socket.gethostname() and isinstance(pid, int) and pid > 0 and not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def _holder(path: Path) -> str:
    pid, host = _read(path)
    return "another process" if pid is None else f"process {pid} on {host}"


def _read(path: Path) -> tuple[object, object]:
    """Process and host; nothing where the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found["pid"], found["host"]
    except (OSError, ValueError, TypeError, KeyError):
        return None, None
