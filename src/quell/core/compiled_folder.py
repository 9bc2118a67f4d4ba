# SPDX-License-Identifier: Apache-2.0
"""Compiled programs that later processes find on disk."""

import contextlib
import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from quell.core.checks import check_count

PROGRAMS = "*-cache"
"""Names that JAX gives to the files of its cache: no others are ever deleted."""


def cache_folder() -> Path:
    """Where quell keeps what it can make again: `$XDG_CACHE_HOME/quell`, or `~/.cache/quell`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quell"


def keep_compiled(folder: str | os.PathLike[str] | None = None, *, max_bytes: int = 2**30) -> Path:
    """Keep what is compiled from now on in a folder, and take what other processes have left there.

    It is JAX's persistent compilation cache, with programs of any size and compile time, for all that this process
    compiles; call it before the first fit. Several processes may use one folder. What is there is found by the program,
    the versions of JAX and XLA, the compiler's options and the kind of machine: nothing in it is ever wrong. To clear
    it, delete the folder.

    Args:
        folder: of the programs; by default `compiled` in `$XDG_CACHE_HOME/quell`, or in `~/.cache/quell`.
        max_bytes: of programs that are left there at this call: the oldest beyond are deleted, and no other files.

    Returns:
        The folder.
    """
    check_count("max_bytes", max_bytes, least=0)
    path = cache_folder() / "compiled" if folder is None else Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    _leave(path, max_bytes)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX stays with the first folder that it has used
    return path


def _leave(folder: Path, max_bytes: int) -> None:
    """Delete the oldest programs beyond a size; another process may be doing the same."""
    found = []
    for path in folder.glob(PROGRAMS):
        with contextlib.suppress(FileNotFoundError):
            about = path.stat()
            found.append((about.st_mtime, about.st_size, path))
    total = 0
    for _, size, path in sorted(found, reverse=True):
        total += size
        if total > max_bytes:
            path.unlink(missing_ok=True)
