# SPDX-License-Identifier: Apache-2.0
"""The file of a checkpoint: a line with the version, a line with a checksum, then named arrays and a header."""

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, PyTree

from quell.core.atomic import write_atomically
from quell.core.checks import first_line
from quell.core.devices import put
from quell.core.processes import read_shared

FORMAT = 2
"""Raised whenever older files could be misread."""

_HEADER = "header"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used, with the reason and the way out."""


class Contents(NamedTuple):
    """What a file holds.

    Args:
        header: text and numbers, as JSON.
        arrays: by name.
    """

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]


def write_contents(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file atomically: a reader sees the old one or the new one, as a whole.

    The arrays are an uncompressed `.npz` archive without pickle; the header is one more array of bytes in it.
    """
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    body = archive_bytes({_HEADER: text, **arrays})
    lines = f"quell checkpoint {FORMAT}\n{hashlib.sha256(body).hexdigest()}\n".encode()
    write_atomically(path, lambda file: file.write(lines + body))


def archive_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of `numpy.savez`, without pickle and with any names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_contents(path: Path) -> Contents:
    """Read a file, and refuse one of another format or one that is damaged."""
    raw = read_shared(path)
    match = re.match(rb"quell checkpoint (\d+)\n", raw)
    if match is None:
        raise CheckpointError(
            f"{path} must be a checkpoint that `quell.fit` wrote, got another file; try another path."
        )
    if int(match[1]) != FORMAT:
        raise CheckpointError(
            f"{path} must have format {FORMAT}, got {int(match[1])}; resume with the quell that wrote it, or start "
            "again with another path."
        )
    checksum, _, body = raw[match.end() :].partition(b"\n")
    if checksum != hashlib.sha256(body).hexdigest().encode():
        raise damaged(path, "its checksum does not match")
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return Contents(json.loads(arrays.pop(_HEADER).tobytes()), arrays)
    except Exception as error:  # a forged archive may raise anything
        raise damaged(path, first_line(error)) from error


def named(tree: PyTree, function: Callable[[Any], Any], prefix: str = "") -> dict[str, Any]:
    """The leaves of a tree by their path, each passed through a function."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {prefix + jax.tree_util.keystr(path): function(leaf) for path, leaf in leaves}


def plain_array(leaf: Any) -> np.ndarray:
    """A leaf as a NumPy array; of a typed key, its bits."""
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def restored(arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str = "") -> PyTree:
    """The tree of which `named(tree, plain_array, prefix)` are the arrays, bit for bit, on its devices.

    Args:
        arrays: by name.
        like: a tree of the same structure; its values do not matter.
        prefix: of the names.
    """
    leaves = [_as_leaf(arrays[name], leaf) for name, leaf in named(like, lambda leaf: leaf, prefix).items()]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _as_leaf(array: np.ndarray, like: Array) -> Array:
    """An array of the file as a leaf of a state: a typed key, a dtype that NumPy lacks, on its devices."""
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    found = jnp.asarray(array if array.dtype == like.dtype else array.view(like.dtype))
    return put(found, like.sharding) if isinstance(like.sharding, NamedSharding) else found


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def damaged(path: Path, reason: str) -> CheckpointError:
    """The error for a file that was changed, or cut off, after it was written."""
    return CheckpointError(f"{path} is damaged: {reason}; restore it from a copy, or delete it and start again.")
