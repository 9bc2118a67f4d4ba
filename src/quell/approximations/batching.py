# SPDX-License-Identifier: Apache-2.0
"""Branches that stay branches when several runs are vectorised."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@jax.custom_batching.custom_vmap
def any_of_batch(flag: Bool[Array, ""]) -> Bool[Array, ""]:
    """The flag itself; under `jax.vmap`, whether that of any run is set, as one flag for all of them.

    A `jax.lax.cond` whose flag differs between runs computes both branches at every step. With one flag it does not;
    what it computes for a run that did not ask is to be thrown away by that run's own flag.
    """
    return flag


@any_of_batch.def_vmap
def _any_of_batch(
    axis_size: int, in_batched: list[bool], flag: Bool[Array, "*run"]
) -> tuple[Bool[Array, "*outer"], bool]:
    return any_of_batch(jnp.any(flag, axis=0) if in_batched[0] else flag), False
