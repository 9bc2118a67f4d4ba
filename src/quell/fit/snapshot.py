# SPDX-License-Identifier: Apache-2.0
"""How far a fit has come, in memory and in a checkpoint."""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array

from quell.core.devices import put
from quell.core.version import VERSION
from quell.fit.checkpoint_file import CheckpointError, damaged, read_contents, write_contents
from quell.fit.fingerprint import PROGRAMS, differences, named, plain_array
from quell.fit.history import History
from quell.fit.loop import LoopState


class Snapshot(NamedTuple):
    """All that is needed to go on.

    Args:
        state: of the loop; with a leading axis for several fits.
        pieces: for each fit, histories that follow each other.
        seconds: spent so far.
    """

    state: LoopState
    pieces: tuple[tuple[History, ...], ...]
    seconds: float

    @property
    def histories(self) -> tuple[History, ...]:
        """One history a fit."""
        return tuple(History.join(pieces) for pieces in self.pieces)


def save_snapshot(
    path: Path, reached: Snapshot, fingerprint: dict[str, Any], choice: dict[str, Any] | None = None
) -> None:
    """Write a checkpoint: state and history by name, and a header that says what they belong to."""
    arrays = named(reached.state, plain_array)
    arrays = {f"state{name}": array for name, array in arrays.items()}
    for number, history in enumerate(reached.histories):
        arrays |= {f"history[{number}].{name}": values for name, values in history._asdict().items()}
    header = {
        "quell": VERSION,
        "jax": jax.__version__,
        "step": int(np.max(plain_array(reached.state.step))),
        "seconds": reached.seconds,
        "fingerprint": fingerprint,
        "choice": choice,
    }
    write_contents(path, header, arrays)


def load_snapshot(path: Path, like: LoopState, fingerprint: dict[str, Any]) -> Snapshot:
    """Read a checkpoint of the same fit.

    Args:
        path: of the checkpoint.
        like: a state of the same structure; its values do not matter.
        fingerprint: of the fit that wants to go on.
    """
    header, arrays = read_contents(path)
    _check_same(path, header, fingerprint)
    try:
        leaves = [
            _as_leaf(arrays[f"state{jax.tree_util.keystr(at)}"], leaf)
            for at, leaf in jax.tree_util.tree_leaves_with_path(like)
        ]
        histories = [
            History(*(arrays[f"history[{number}].{name}"] for name in History._fields))
            for number in range(max(1, np.size(like.step)))
        ]
    except KeyError as error:
        raise damaged(path, f"it has no array named {error}") from error
    state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return Snapshot(state, tuple((history,) for history in histories), float(header["seconds"]))


def _check_same(path: Path, header: dict[str, Any], fingerprint: dict[str, Any]) -> None:
    if header["quell"] != VERSION:
        raise CheckpointError(
            f"{path} was written by quell {header['quell']}, and this is {VERSION}. The same version was needed, "
            "because another one may take other steps. Install that version, or begin anew with another path."
        )
    there, here = header["fingerprint"], fingerprint
    if header["jax"] != jax.__version__:
        there, here = ({name: part[name] for name in part if name not in PROGRAMS} for part in (there, here))
    found = differences(there, here)
    if found:
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise CheckpointError(
            f"{path} was written by another fit: it differs in {'; '.join(found[:5])}{more}. "
            "The checkpoint of this fit was needed. "
            "Give this fit a path of its own, or resume with the settings that the checkpoint was written with."
        )
    if header["jax"] != jax.__version__:
        warnings.warn(
            f"{path} was written with JAX {header['jax']} and goes on with JAX {jax.__version__}: "
            "the fit is the same to rounding, not bit for bit.",
            stacklevel=2,
        )


def _as_leaf(array: np.ndarray, like: Array) -> Array:
    if jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    found = jnp.asarray(array if array.dtype == like.dtype else array.view(like.dtype))
    return put(found, like.sharding) if isinstance(like.sharding, NamedSharding) else found
