# SPDX-License-Identifier: Apache-2.0
"""When to leap, and when to take Newton steps."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

MOST_LEAPS, LEAP_TRIALS, LEAST_LEAP = 40, 3, 1.0
"""Of a start; trials of each, with half of the rate before; nats below which a gain is left to Newton steps, which
converge faster near the optimum."""

FAILED_LEAP, REST = 4, 2
"""A leap that fails or is shortened counts as so many; after one that fails come so many Newton steps."""


class Leaps(NamedTuple):
    """The leaps of a start: natural-gradient steps of rate one, which take one gradient and no product.

    Args:
        left: that may be tried.
        rest: Newton steps before the next.
    """

    left: Int[Array, ""]
    rest: Int[Array, ""]

    @classmethod
    def of_start(cls, *, may_leap: bool) -> "Leaps":
        """Before the first step."""
        return cls(jnp.asarray(MOST_LEAPS if may_leap else 0, jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def are_due(self) -> Bool[Array, ""]:
        """Whether the next step is one."""
        return (self.left > 0) & (self.rest == 0)

    def after_leap(self, moves: Bool[Array, ""], is_whole: Bool[Array, ""], gained: Float[Array, ""]) -> "Leaps":
        """After one that may have failed or been shortened, and its gain."""
        left = jnp.where(moves & (gained < LEAST_LEAP), 0, self.left - jnp.where(moves & is_whole, 1, FAILED_LEAP))
        return Leaps(left, jnp.where(moves, 0, REST))

    def after_newton(self, reaches_top: Bool[Array, ""]) -> "Leaps":
        """After a Newton step: none is needed any more where that reaches the top of its model."""
        return Leaps(jnp.where(reaches_top, 0, self.left), jnp.maximum(self.rest - 1, 0))
