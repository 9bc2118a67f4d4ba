# SPDX-License-Identifier: Apache-2.0
"""The addends of a NumPyro model's log density: the likelihood, row by row, and the prior, which is everything else."""

import functools
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int

from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.structure import Access, Structure
from quell.adapters.numpyro.trace import Rows, Site, base_distribution
from quell.core.program import live_equations, variables
from quell.core.put import put
from quell.core.tiers import tiered_once
from quell.families import LocationScale
from quell.models import AbstractPrior
from quell.models.quadratic import DiagonalCurvature, Quadratic

Latent = Float[Array, "latent"]


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
        row = put(np.arange(self.structure.num_data)) if needs_rows else None
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


class NumPyroPrior(AbstractPrior):
    """Log density of the unconstrained latents, and of observations outside the data's plate.

    Args:
        call: the model.
        structure: of it.
        moments: mean and standard deviation of each coordinate, if all latents are independent normals.
    """

    call: Call
    structure: Structure
    moments: LocationScale | None

    def log_prob(self, z: Latent) -> Float[Array, ""]:
        return _log_prior(self.call, self.structure, z)  # pyright: ignore[reportCallIssue]

    def quadratic(self, like: Latent) -> Quadratic | None:
        if self.moments is None:
            return None
        loc, scale = (moment.astype(like.dtype) for moment in self.moments)
        constant = -jnp.sum(jnp.log(scale)) - 0.5 * like.shape[0] * jnp.log(2 * jnp.pi).astype(like.dtype)
        return Quadratic(loc, constant, jnp.zeros_like(loc), DiagonalCurvature(-1.0 / scale**2))


@functools.partial(eqx.filter_jit, inline=True)  # pyright: ignore[reportCallIssue]
def _log_prior(call: Call, structure: Structure, z: Latent) -> Float[Array, ""]:
    """The log prior, traced once."""
    return structure.rest_of(call.trace(structure.unravel(z), Rows()))


def normal_moments(call: Call, structure: Structure) -> LocationScale | None:
    """The prior's moments if all latents are independent normals; else `None`."""

    def moments(z: Latent) -> list[LocationScale | None]:
        sites = call.trace(structure.unravel(z), Rows()).sites
        return [_moments_of(sites[name]) for name in structure.names]

    start = np.zeros(structure.latent_dim, jnp.result_type(float))
    pieces = tiered_once(moments)(start)
    if structure.other_sites or any(piece is None for piece in pieces) or _depends(moments, jnp.asarray(start)):
        return None
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces)


def _moments_of(site: Site) -> LocationScale | None:
    base, shape = base_distribution(site["fn"]), jnp.shape(site["value"])
    is_scaled = site["scale"] is not None and not (isinstance(site["scale"], int | float) and site["scale"] == 1)
    if not isinstance(base, dist.Normal) or is_scaled:
        return None
    return LocationScale(*(jnp.broadcast_to(jnp.asarray(moment), shape).ravel() for moment in (base.loc, base.scale)))


def _depends(function: Any, z: Latent) -> bool:
    """Whether the result depends on the argument, by its program."""
    jaxpr = jax.make_jaxpr(function)(z).jaxpr
    read = [variables(equation.invars) for equation in live_equations(jaxpr)]
    return not set(jaxpr.invars).isdisjoint(itertools.chain(variables(jaxpr.outvars), *read))
