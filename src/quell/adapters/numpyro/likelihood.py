# SPDX-License-Identifier: Apache-2.0
"""The likelihood of a NumPyro model, row by row."""

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.structure import Access, Structure
from quell.adapters.numpyro.trace import Rows


class NumPyroData(NamedTuple):
    """The data that minibatches are taken from.

    Attributes:
        arrays: the arguments with one row per datum, by name.
        row: row numbers, if the model needs them.
    """

    arrays: dict[str, Array]
    row: Int[Array, "datum"] | None


class Likelihood(eqx.Module):
    """Log-likelihood of a minibatch, by the way of access that the model allows.

    Args:
        call: the model.
        structure: of it.
        access: how rows are taken.
        sliced: names of the arrays with one row per datum.
    """

    call: Call
    structure: Structure = eqx.field(static=True)
    access: Access = eqx.field(static=True)
    sliced: tuple[str, ...] = eqx.field(static=True, default=())

    def data(self) -> NumPyroData:
        """All rows."""
        needs_rows = self.access is not Access.SLICED or self.structure.local
        row = jnp.arange(self.structure.num_data) if needs_rows else None
        return NumPyroData({name: self.call.arrays[name] for name in self.sliced}, row)

    def __call__(self, latents: Mapping[str, Array], batch: NumPyroData) -> Float[Array, "datum"]:
        """One value per row of the batch."""
        structure, call = self.structure, self.call
        if self.access is Access.GATHERED:
            return structure.rows_of(call.trace(latents, Rows()))[batch.row]
        is_sliced = self.access is Access.SLICED
        rows = Rows(structure.plate, structure.dim, batch.row, is_sliced=is_sliced)
        values = structure.rows_of(call.trace(latents, rows, batch.arrays))
        # The scale of a subsampled plate is undone.
        return values if is_sliced else values * (values.shape[0] / structure.num_data)
