# SPDX-License-Identifier: Apache-2.0
"""Samples of a family, compiled."""

import jax
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.tiers import tiered_jit
from quell.families.base import AbstractFamily


def draw_latents(
    key: Key[Array, ""], family: AbstractFamily, params: PyTree, num: int
) -> Float[Array, "sample latent"]:
    """Flat latents from the fitted distribution."""
    check_key(key)
    check_count("num", num)
    return _latents(family, params, key, num)


@tiered_jit
def _latents(family: AbstractFamily, params: PyTree, key: Key[Array, ""], num: int) -> Float[Array, "sample latent"]:
    noise = family.noise(key, num, jax.tree.leaves(params)[0].dtype)
    return family.algebra(params, noise).latents(family.sampling)
