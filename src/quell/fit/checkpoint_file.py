# SPDX-License-Identifier: Apache-2.0
"""The bytes of a checkpoint: a line with the version, a line with a checksum, then named arrays and a header."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from quell.core.atomic import write_atomically
from quell.core.processes import read_shared

FORMAT = 1
"""Raised whenever older files could be misread."""

_MAGIC = b"quell checkpoint "
_HEADER = "header"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason and the way out."""


class Contents(NamedTuple):
    """What a checkpoint holds.

    Args:
        header: text and numbers, as JSON has them.
        arrays: by name.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_contents(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint; whoever reads it sees the old one or the new one, as a whole.

    The arrays are an uncompressed `.npz` archive without pickle, the header is one more array of bytes in it.
    """
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    body = archive_bytes({_HEADER: text, **arrays})
    lines = b"%s%d\n%s\n" % (_MAGIC, FORMAT, hashlib.sha256(body).hexdigest().encode())
    write_atomically(path, lambda file: file.write(lines + body))


def archive_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """What `numpy.savez` writes, without pickle and with any names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_contents(path: Path) -> Contents:
    """Read a checkpoint, and refuse one of another format or one that is damaged."""
    raw = read_shared(path)
    match = re.match(rb"quell checkpoint (\d+)\n", raw)
    if match is None:
        raise CheckpointError(
            f"{path} is not a checkpoint. A file that `quell.fit(..., checkpoint=...)` wrote was needed. "
            "Give another path, for example `quell.Checkpoint('fit.quell')`."
        )
    if int(match[1]) != FORMAT:
        raise CheckpointError(
            f"{path} has format {int(match[1])}. Format {FORMAT} was needed. "
            "Go on with the version of quell that wrote it, or give another path and start anew."
        )
    checksum, _, body = raw[match.end() :].partition(b"\n")
    if checksum != hashlib.sha256(body).hexdigest().encode():
        raise damaged(path, "its checksum does not fit")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return Contents(json.loads(arrays.pop(_HEADER).tobytes()), arrays)
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> CheckpointError:
    """The error for a file that was changed, or cut off, after it was written."""
    return CheckpointError(
        f"{path} is damaged: {reason}. A checkpoint as it was written was needed. "
        "Copy it again from where it came from, or delete it and start anew."
    )
