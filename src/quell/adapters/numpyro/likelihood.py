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
        sliced: positions of the arrays with one row per datum.
    """

    call: Call
    structure: Structure = eqx.field(static=True)
    access: Access = eqx.field(static=True)
    sliced: tuple[int, ...] = eqx.field(static=True, default=())

    def data(self) -> NumPyroData:
        """All rows."""
        index = jnp.arange(self.structure.num_data)
        if self.access is not Access.SLICED:
            return NumPyroData({}, index)
        arrays = {self.call.names[k]: self.call.arrays[k] for k in self.sliced}
        return NumPyroData(arrays, index if self.structure.local else None)

    def __call__(self, latents: Mapping[str, Array], batch: NumPyroData) -> Float[Array, "datum"]:
        """One value per row of the batch."""
        structure, call = self.structure, self.call
        if self.access is Access.GATHERED:
            return structure.rows_of(call.trace(latents, Rows()))[batch.row]
        if self.access is Access.INDEXED:
            values = structure.rows_of(call.trace(latents, Rows(structure.plate, structure.dim, batch.row)))
            return values * (values.shape[0] / structure.num_data)  # undo the scale of the subsampled plate
        arrays = [batch.arrays.get(name, array) for name, array in zip(call.names, call.arrays, strict=True)]
        rows = Rows(structure.plate, structure.dim, batch.row, is_sliced=True)
        return structure.rows_of(call.trace(latents, rows, arrays))
