# SPDX-License-Identifier: Apache-2.0
"""Whole trees of arrays at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no number is NaN or infinite."""
    return jnp.all(jnp.stack([jnp.asarray(True), *(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree))]))


def all_equal(left: PyTree, right: PyTree) -> Bool[Array, ""]:
    """Whether two trees hold the same numbers."""
    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(lambda one, other: jnp.all(one == other), left, right))))


def select(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """One tree or the other, in the types of the old one."""

    def chosen(one: Array, other: Array) -> Array:
        same = one if one.dtype == other.dtype else one.astype(other.dtype)  # random keys have no `astype`
        return jnp.where(condition, same, other)

    return jax.tree.map(chosen, new, old)
