# SPDX-License-Identifier: Apache-2.0
"""When a round fits its draws and not the posterior."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MANY_PRODUCTS = 10
"""After a step of so many, other draws tell whether it was worth them: they take a gradient."""

LEAST_GAIN, MOST_LEFT = 0.05, 10.0
"""A round goes on while its steps gain this share of what its draws promise too much, or while the most draws that an
evaluation may take would leave less of that than so many times the tolerance."""


def is_dear(products: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether a step took so many products with the Hessian that other draws should be asked."""
    return products >= MANY_PRODUCTS


def fits_its_draws(
    too_much: Float[Array, ""], gained: Float[Array, ""], fewest: Float[Array, ""], tolerance: float | Float[Array, ""]
) -> Bool[Array, ""]:
    r"""Whether no number of draws would be enough.

    The optimum on \(n\) draws lies some \(\nu\) above the true ELBO's, and by as much below it on other draws: together
    \(2\nu\), which falls as \(1/n\).

    Args:
        too_much: nats that the draws of the round promise more than others.
        gained: by the last step.
        fewest: of what they promise too much, the share that the most draws would.
        tolerance: in nats.
    """
    return (gained < LEAST_GAIN * too_much) & (0.5 * fewest * too_much > MOST_LEFT * jnp.asarray(tolerance))
