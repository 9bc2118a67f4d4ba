# SPDX-License-Identifier: Apache-2.0
"""From a function to the addends that it sums."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.structure.addends import Structure, structure_of, structure_of_rows
from quell.structure.flat_program import FlatProgram
from quell.structure.reading import Reading


def read_structure(function: Callable[[Float[Array, "latent"]], Float[Array, ""]], dim: int) -> Structure:
    """The addends of a log density, in groups of one program each.

    Args:
        function: of a flat latent.
        dim: its length.

    Example:
        >>> import jax.numpy as jnp
        >>> found = read_structure(lambda z: jnp.sum(jnp.cos(z[:2] - z[2])) + z[0] ** 2 / 2, 3)
        >>> sorted((len(group.functions), group.weight.size) for group in found.groups)
        [(1, 1), (1, 2)]
    """
    reading = Reading(FlatProgram(function, jax.eval_shape(lambda: jnp.zeros(dim))))
    return structure_of(reading, reading.outputs[0])


def read_rows(function: Callable[[Float[Array, "latent"]], Float[Array, "datum"]], dim: int) -> Structure:
    """The addends of the log-likelihoods of single data, with the datum that each is of, and without constants.

    Args:
        function: of a flat latent.
        dim: its length.
    """
    reading = Reading(FlatProgram(function, jax.eval_shape(lambda: jnp.zeros(dim))))
    return structure_of_rows(reading, reading.outputs[0])
