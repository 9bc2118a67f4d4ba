# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a fit: what a checkpoint must have in common with the fit that resumes it."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree, UInt32

from quell.core.version import VERSION
from quell.data import DiskRows
from quell.data.access import like_rows
from quell.fit.checkpoint.file import named, plain_array
from quell.gradient import Gradient

PROGRAMS = ("log-likelihood", "log-prior", "program of the optimizer")
"""Entries that are digests of traced programs: another version of JAX may write the same program differently."""

_MOST_NAMED = 5
"""Differences that are named in an error; the others are counted."""


def fingerprint(gradient: Gradient, key: Key[Array, "*fit"], state: PyTree) -> dict[str, Any]:
    """Entries by name, as JSON.

    Functions are compared by the program that JAX traces from them, so that a changed likelihood is seen. Settings
    inside an optimiser, such as its learning rate, are not: only the structure of its state is compared.

    Args:
        gradient: model, family, variates, base, sampler and rule.
        key: of the fit, or one for each.
        state: of the loop; its values do not matter.
    """
    model = gradient.problem.model
    latent, batch = jax.eval_shape(lambda: jnp.zeros(model.dim)), like_rows(model.data, 3)
    return {
        "quell": VERSION,
        "jax": jax.__version__,
        "model": {"class": _class_name(model), "dim": model.dim, "num_data": model.num_data},
        "data": _disk_digest(model.data) if isinstance(model.data, DiskRows) else named(model.data, array_digest),
        "log-likelihood": program_digest(model.log_likelihood, latent, batch),
        "log-prior": program_digest(model.prior.log_prob, latent),
        "family": describe(gradient.problem.family),
        "variates": {variate.name: describe(variate) for variate in gradient.variates},
        "order of the variates": list(gradient.names),
        "base": describe(gradient.base),
        "sampler": describe(gradient.sampler),
        "rule": describe(gradient.rule),
        "key": f"{jax.random.key_impl(key)} {plain_array(key).tolist()}",
        "state": named(state, _shape),
    }


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Where two fingerprints differ, in words; empty where they do not.

    Programs are compared only where one version of JAX has written both.
    """
    skipped = () if there.get("jax") == here.get("jax") else ("jax", *PROGRAMS)
    kept = ({name: one[name] for name in one if name not in skipped} for one in (there, here))
    found = _differences(*kept, name="")
    more = f"; and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return "; ".join(found[:_MOST_NAMED]) + more


def _differences(there: Any, here: Any, name: str) -> list[str]:
    if isinstance(there, dict) and isinstance(here, dict):
        keys = dict.fromkeys([*there, *here])
        found = [_differences(there.get(key), here.get(key), f"{name}, {key}" if name else key) for key in keys]
        return [one for several in found for one in several]
    return [] if there == here else [f"{name} ({_short(there)} there, {_short(here)} here)"]


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def describe(value: Any) -> Any:
    """A module with all its settings, defaults included, as JSON."""
    if isinstance(value, eqx.Module):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": _class_name(value), **fields}
    if isinstance(value, Mapping):
        return {str(name): describe(inside) for name, inside in value.items()}
    if isinstance(value, tuple | list):
        return [describe(inside) for inside in value]
    if isinstance(value, Array | np.ndarray):
        return array_digest(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return getattr(value, "__qualname__", None) or _without_place(repr(value))


def array_digest(leaf: Any) -> str:
    """Dtype, shape and a digest in integers that each device sums over its own rows, however they are sharded."""
    return f"{_shape(leaf)} {''.join(f'{int(word):08x}' for word in _sums_of_bits(leaf))}"


@jax.jit
def _sums_of_bits(leaf: Array) -> UInt32[Array, "word"]:
    """Two sums over all words, each hashed together with its position."""
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(leaf.dtype.itemsize, jnp.uint32)
    words = leaf if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, unsigned)
    places = [jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis) for axis in range(words.ndim)]
    place = functools.reduce(lambda before, here: _hashed(before * 31 + here), places, jnp.uint32(0))
    first = _hashed(words.astype(jnp.uint32) ^ place)
    return jnp.stack([jnp.sum(first, dtype=jnp.uint32), jnp.sum(_hashed(first + place), dtype=jnp.uint32)])


def _hashed(words: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def program_digest(function: Callable[..., Any], *shapes: Any) -> str:
    """A digest of what JAX traces from a function, with its constants."""
    traced = jax.make_jaxpr(function)(*shapes)
    texts = [_without_place(str(traced.jaxpr)), *(array_digest(jnp.asarray(constant)) for constant in traced.consts)]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def _disk_digest(rows: DiskRows) -> dict[str, str]:
    """Of the files, and of the function that prepares their rows."""
    prepare = {} if rows.prepare is None else {"prepare": program_digest(rows.prepare, rows.like_raw(3))}
    return rows.digest | prepare


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _without_place(text: str) -> str:
    """Without addresses in memory, and without the mesh that a program was traced for."""
    return re.sub(r" at 0x[0-9a-f]+|\n *ctx_mesh=.*", "", text)


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
