# SPDX-License-Identifier: Apache-2.0
"""Blocks of parameters and of latents: the parts of a tree, by name."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

WHOLE = "params"
"""Name of the only block where the parameters are one array."""

LATENT = "z"
"""Name of a latent that has none of its own."""


def vectors_by_block(params: PyTree, *, by_leaf: bool = False) -> dict[str, Float[Array, "_"]]:
    """The parameters as one vector for each top-level part: the fields of a Gaussian, the blocks of a `Product`.

    Args:
        params: of a family.
        by_leaf: take each array of them for a part.
    """
    found: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = _written(path if by_leaf else path[:1]) if path else WHOLE
        found.setdefault(name, []).append(jnp.ravel(leaf))
    return {name: jnp.concatenate(leaves) for name, leaves in found.items()}


def named_leaves(latent: PyTree) -> dict[str, Any]:
    """The arrays of a latent by the names that lead to them, such as `slope` or `group.scale`."""
    leaves = jax.tree_util.tree_flatten_with_path(latent)[0]
    names = [_written(path) if path else LATENT for path, _ in leaves]
    if len(set(names)) < len(names):  # a key that holds a dot, beside a nested one
        names = [jax.tree_util.keystr(path) for path, _ in leaves]
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _written(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
