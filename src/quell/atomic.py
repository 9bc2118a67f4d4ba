# SPDX-License-Identifier: Apache-2.0
"""Files that are there as a whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO


def write_atomically(path: Path, write: Callable[[BinaryIO], Any]) -> None:
    """Write to a new file beside the old one, then take its place.

    Args:
        path: in a folder that is there.
        write: gets the new file, open for bytes.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
