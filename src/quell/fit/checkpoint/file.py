# SPDX-License-Identifier: Apache-2.0
"""The file of a checkpoint: a line with the version, a line with a checksum, then named arrays and a header."""

import hashlib
import io
import json
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array

from quell.core.atomic import write_atomically
from quell.core.devices import put
from quell.core.processes import read_shared
from quell.core.version import VERSION
from quell.fit.checkpoint.fingerprint import PROGRAMS, differences, named, plain_array, summary
from quell.fit.history import History
from quell.fit.step import LoopState

FORMAT = 1
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


class Snapshot(NamedTuple):
    """All that a fit needs to go on.

    Args:
        state: of the loop; with a leading axis for several fits.
        pieces: for each fit, consecutive histories.
        seconds: spent so far.
    """

    state: LoopState
    pieces: tuple[tuple[History, ...], ...]
    seconds: float

    @property
    def histories(self) -> tuple[History, ...]:
        """One history per fit."""
        return tuple(History.join(pieces) for pieces in self.pieces)

    def save(self, path: Path, fingerprint: dict[str, Any], choice: dict[str, Any] | None = None) -> None:
        """Write a checkpoint: state and history by name, and a header with the fit that they belong to."""
        arrays = {f"state{name}": array for name, array in named(self.state, plain_array).items()}
        for number, history in enumerate(self.histories):
            arrays |= {f"history[{number}].{name}": values for name, values in history._asdict().items()}
        header = {
            "quell": VERSION,
            "jax": jax.__version__,
            "step": int(np.max(plain_array(self.state.step))),
            "seconds": self.seconds,
            "fingerprint": fingerprint,
            "choice": choice,
        }
        write_contents(path, header, arrays)

    @classmethod
    def load(cls, path: Path, like: LoopState, fingerprint: dict[str, Any]) -> "Snapshot":
        """Read a checkpoint of the same fit.

        Args:
            path: of the file.
            like: a state of the same structure; its values do not matter.
            fingerprint: of the fit that is to go on.
        """
        header, arrays = read_contents(path)
        _check_same_fit(path, header, fingerprint)
        num_fits = max(1, np.size(like.step))
        try:
            leaves = named(like, lambda leaf: leaf)
            state = [_as_leaf(arrays[f"state{name}"], leaf) for name, leaf in leaves.items()]
            histories = [
                History(*(arrays[f"history[{number}].{name}"] for name in History._fields))
                for number in range(num_fits)
            ]
        except KeyError as error:
            raise damaged(path, f"it has no array named {error}") from error
        restored = jax.tree.unflatten(jax.tree.structure(like), state)
        return cls(restored, tuple((history,) for history in histories), float(header["seconds"]))


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
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> CheckpointError:
    """The error for a file that was changed, or cut off, after it was written."""
    return CheckpointError(f"{path} is damaged: {reason}; restore it from a copy, or delete it and start again.")


def check_version(path: Path, header: dict[str, Any]) -> None:
    """Refuse a checkpoint of another version of quell."""
    if header["quell"] != VERSION:
        raise CheckpointError(
            f"{path} must be written by quell {VERSION}, because other versions may take other steps, got "
            f"{header['quell']}; install that version, or start again with another path."
        )


def _check_same_fit(path: Path, header: dict[str, Any], fingerprint: dict[str, Any]) -> None:
    check_version(path, header)
    there, here, is_other_jax = header["fingerprint"], fingerprint, header["jax"] != jax.__version__
    if is_other_jax:
        there, here = ({name: part[name] for name in part if name not in PROGRAMS} for part in (there, here))
    if found := differences(there, here):
        raise CheckpointError(
            f"{path} was written by another fit: it differs in {summary(found)}; give this fit another path, or resume "
            "with the settings that the checkpoint was written with."
        )
    if is_other_jax:
        warnings.warn(
            f"{path} was written with JAX {header['jax']} and is resumed with JAX {jax.__version__}: "
            "the fit is the same to rounding, not bit for bit.",
            stacklevel=2,
        )


def _as_leaf(array: np.ndarray, like: Array) -> Array:
    """An array of the file as a leaf of the state: a typed key, a dtype that NumPy lacks, on its devices."""
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    found = jnp.asarray(array if array.dtype == like.dtype else array.view(like.dtype))
    return put(found, like.sharding) if isinstance(like.sharding, NamedSharding) else found
