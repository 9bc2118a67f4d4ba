# SPDX-License-Identifier: Apache-2.0
"""The prior of a NumPyro model: everything that does not belong to a row of the data."""

import functools
import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.structure import Structure
from quell.adapters.numpyro.trace import Rows, Site, base_distribution
from quell.core.program import live_equations, variables
from quell.families import LocationScale
from quell.models import AbstractPrior
from quell.models.quadratic import DiagonalCurvature, Quadratic

Latent = Float[Array, "latent"]


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

    start = jnp.zeros(structure.latent_dim)
    pieces = jax.jit(moments)(start)
    if structure.other_sites or any(piece is None for piece in pieces) or _depends(moments, start):
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
