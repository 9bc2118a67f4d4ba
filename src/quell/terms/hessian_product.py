# SPDX-License-Identifier: Apache-2.0
"""Products with a Hessian that is never formed."""

from collections.abc import Callable

import jax
from jaxtyping import Array, Float


def hessian_products(
    function: Callable[[Array], Array], z: Float[Array, "latent"], columns: Float[Array, "latent column"]
) -> Float[Array, "latent column"]:
    """The Hessian at `z` times columns, forward over reverse."""
    push = jax.linearize(jax.grad(function), z)[1]
    return jax.vmap(push, in_axes=1, out_axes=1)(columns)
