# SPDX-License-Identifier: Apache-2.0
"""Checks of user input; an error states the rule, what came, and what to type where that is not obvious."""

import difflib
import math
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from quell.core.tiers import tiered_jit


def check_key(key: object) -> None:
    """Refuse anything that is not one typed random key."""
    if isinstance(key, Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return
    given = f"an array of dtype {key.dtype} and shape {key.shape}" if isinstance(key, Array) else repr(key)
    raise TypeError(f"`key` must be one typed random key, got {given}; try `key=jax.random.key(0)`.")


def check_count(name: str, value: object, *, least: int = 1) -> None:
    """Refuse a count that is not an integer or is too small."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ValueError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
    if value < least:
        raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def check_seed(value: object) -> None:
    """Refuse a seed that is not an integer of 31 bits."""
    check_count("seed", value, least=0)
    if int(value) >= 2**31:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"`seed` must be below {2**31}, got {value}.")


def check_text(name: str, value: object) -> None:
    """Refuse what is not a text, or is an empty one."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"`{name}` must be a text, got {value!r}.")


def check_name(what: str, name: str, valid: Iterable[str]) -> None:
    """Refuse an unknown name, and offer the nearest valid ones."""
    valid = list(valid)
    if name in valid:
        return
    near = difflib.get_close_matches(name, valid, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    raise ValueError(f"{what} must be one of {', '.join(valid)}, got {name!r}.{hint}")


def check_positive(name: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    is_number = isinstance(value, int | float | np.number | np.ndarray | Array) and not isinstance(value, bool)
    if not (is_number and value > 0 and math.isfinite(value)):
        raise ValueError(f"`{name}` must be positive and finite, got {value}.")


def check_finite(name: str, value: Array | np.ndarray) -> None:
    """Refuse an array with NaN or infinite entries; a NumPy array is checked on the host."""
    bad = int(np.sum(~np.isfinite(value)) if isinstance(value, np.ndarray) else _num_bad(value))
    if bad:
        raise ValueError(
            f"`{name}` must be finite, got {bad} NaN or infinite entries of {value.size}; drop or impute those rows."
        )


@tiered_jit
def _num_bad(value: Array) -> Array:
    return jnp.sum(~jnp.isfinite(value))


def first_line(error: Exception) -> str:
    """What an error says first; JAX's go on for pages."""
    return str(error).strip().partition("\n")[0]
