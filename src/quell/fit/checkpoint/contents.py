# SPDX-License-Identifier: Apache-2.0
"""Checks of what a checkpoint holds: a forged or damaged one is refused before a step sees it."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from quell.fit.checkpoint.file import damaged, named, plain_array
from quell.fit.history import History

_PARAMS = re.compile(r"(\.algorithm)?\.params\b")
"""The parameters of the fit itself; those of an anchor that is not set yet may be anything."""


def check_header(path: Path, header: Any) -> None:
    """Refuse a header without the fit that it belongs to, or with a time that is no number."""
    wanted = isinstance(header, dict) and isinstance(header.get("fingerprint"), dict)
    if not wanted or "jax" not in header["fingerprint"]:
        raise damaged(path, "its header has no fingerprint of a fit")
    seconds = header.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
        raise damaged(path, f"`seconds` must be a finite number, got {seconds!r}")


def check_state(path: Path, arrays: Mapping[str, np.ndarray], like: PyTree, prefix: str) -> None:
    """Refuse arrays of other shapes or dtypes than those of a state, and parameters that are NaN.

    Infinite numbers may be part of a state, such as the radius of a trust region.

    Args:
        path: of the checkpoint.
        arrays: by name.
        like: a state of the same fit; its values do not matter.
        prefix: of the names.
    """
    for name, leaf in named(like, plain_array, prefix).items():
        _check_array(path, name, arrays.get(name), dtype=leaf.dtype, shape=leaf.shape)
        if _PARAMS.match(name.removeprefix(prefix)) and _has_nan(arrays[name], leaf.dtype):
            raise damaged(path, f"`{name}` must be free of NaN")


def read_history(path: Path, arrays: Mapping[str, np.ndarray], like: History, prefix: str) -> History:
    """The history of one fit; refused if its arrays do not belong together.

    Args:
        path: of the checkpoint.
        arrays: by name.
        like: an empty history of the same fit.
        prefix: of the names.
    """
    num = arrays.get(f"{prefix}.elbo", np.zeros(0)).shape[:1]
    for field in History._fields:
        name, empty = f"{prefix}.{field}", getattr(like, field)
        found = arrays.get(name)
        dtype = empty.dtype if found is None or found.dtype.kind != empty.dtype.kind else found.dtype
        _check_array(path, name, found, dtype=dtype, shape=(*num, *empty.shape[1:]))
    return History(*(arrays[f"{prefix}.{field}"] for field in History._fields))


def _check_array(path: Path, name: str, found: np.ndarray | None, *, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    if found is None:
        raise damaged(path, f"`{name}` is missing")
    is_same = found.dtype == dtype or (found.dtype.kind == "V" and found.dtype.itemsize == dtype.itemsize)
    if not is_same or found.shape != shape:
        raise damaged(path, f"`{name}` must be {dtype}{list(shape)}, got {found.dtype}{list(found.shape)}")


def _has_nan(found: np.ndarray, dtype: np.dtype) -> bool:
    """NumPy reads a dtype that it lacks, such as bfloat16, as bytes."""
    values = found if found.dtype == dtype else found.view(dtype)
    return bool(jnp.issubdtype(dtype, jnp.inexact) and jnp.isnan(values).any())
