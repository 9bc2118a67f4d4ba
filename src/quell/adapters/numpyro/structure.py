# SPDX-License-Identifier: Apache-2.0
"""The structure of a NumPyro model: its latents, the axis of its data, and how minibatches are taken."""

import dataclasses
import enum
import math
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.adapters.numpyro.trace import Site, Trace, is_latent, log_prob, plate_dims, unconstrained_shape
from quell.core.checks import check_name
from quell.models import ModelError


class Access(enum.Enum):
    """How the likelihood of a minibatch is computed."""

    SLICED = "arguments sliced to the rows of the minibatch"
    INDEXED = "plate restricted to the rows of the minibatch"
    GATHERED = "rows of the minibatch gathered from the likelihood of all data"


@dataclasses.dataclass(frozen=True)
class Structure:
    """The sites of a model, as a trace shows them.

    Attributes:
        names: of the latent sites, in the order of the flat latent.
        shapes: of their unconstrained values.
        local: latents inside the data's plate, one per row.
        plate: of the data; `None` if the leading axis of an observed site takes its place.
        dim: the data's axis, counted from the right.
        num_data: its length.
        subsample_size: of the data's plate, if the model has one.
        data_sites: observed sites and factors inside the plate.
        other_sites: those outside, which are never subsampled.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    local: tuple[str, ...]
    plate: str | None
    dim: int | None
    num_data: int
    subsample_size: int | None
    data_sites: tuple[str, ...]
    other_sites: tuple[str, ...]

    @property
    def latent_dim(self) -> int:
        """Length of the flat latent."""
        return sum(math.prod(shape) for shape in self.shapes)

    def unravel(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        """Unconstrained values by site name."""
        values, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            values[name] = z[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        return values

    def rows_of(self, trace: Trace) -> Float[Array, "row"]:
        """Log-likelihood of each row of the plate."""
        values = [_by_row(log_prob(trace.sites[name]), self.dim) for name in self.data_sites]
        return sum(values[1:], values[0]) if values else jnp.zeros(1)

    def rest_of(self, trace: Trace) -> Float[Array, ""]:
        """Log density of everything else: the unconstrained latents, and observations outside the data's plate."""
        values = [jnp.sum(log_prob(trace.sites[name])) for name in (*self.names, *self.other_sites)]
        return sum(values[1:], values[0])


def read_structure(trace: Trace, plate: str | None) -> Structure:
    """Find the latents and the axis of the data in a trace.

    Raises:
        ModelError: for a model that cannot be fitted, with a remedy.
    """
    sites = trace.sites
    _check_sites(sites)
    latents = [site for site in sites.values() if is_latent(site)]
    observed = [site for site in sites.values() if site["type"] == "sample" and site["is_observed"]]
    for site in observed:
        _check_shape(site, trace)
    name = _data_plate(trace, observed, plate)
    if name is None:
        inside, dim = _leading_axis(observed)
    else:
        inside = [site for site in observed if name in plate_dims(site)]
        dim = plate_dims(inside[0])[name]
    num_data = 1 if dim is None else jnp.shape(log_prob(inside[0]))[dim]
    chosen = [site["name"] for site in inside]
    return Structure(
        names=tuple(site["name"] for site in latents),
        shapes=tuple(unconstrained_shape(site) for site in latents),
        local=tuple(site["name"] for site in latents if name in plate_dims(site)),
        plate=name,
        dim=dim,
        num_data=num_data,
        subsample_size=_subsample_size(trace, name),
        data_sites=tuple(chosen),
        other_sites=tuple(site["name"] for site in observed if site["name"] not in chosen),
    )


def _check_sites(sites: Mapping[str, Site]) -> None:
    for name, site in sites.items():
        if site["type"] in ("param", "mutable"):
            raise ModelError(
                f"All sites of the model must be random variables, got the `{site['type']}` site {name!r}; give it a "
                f"prior with `numpyro.sample({name!r}, ...)`, or fix it with `numpyro.handlers.substitute`."
            )
        if is_latent(site) and site["fn"].support.is_discrete:
            raise ModelError(
                f"All latents must be continuous, got the discrete {name!r} ({type(site['fn']).__name__}); marginalise "
                "it, for example with `dist.MixtureSameFamily` or `numpyro.factor` and `jax.nn.logsumexp`, or write a "
                "`quell.Model` with `quell.Bernoulli` or `quell.Categorical`."
            )
    if not any(is_latent(site) for site in sites.values()):
        raise ModelError(
            "The model must have at least one latent site, got none; write a `numpyro.sample` without `obs`."
        )


def _check_shape(site: Site, trace: Trace) -> None:
    """Refuse observations that do not have the shape of the plates around them."""
    given, expected = jnp.shape(site["value"]), tuple(site["fn"].shape())
    fits = len(given) <= len(expected) and all(
        one in (1, other) for one, other in zip(given[::-1], expected[::-1], strict=False)
    )
    if plate_dims(site) and not fits:
        plates = ", ".join(f"{name!r} of size {trace.plates[name][0]}" for name in plate_dims(site))
        raise ModelError(
            f"The observations of site {site['name']!r} inside the plate {plates} must have shape {expected}, got "
            f"{given}; give the plate the number of the data, for example `numpyro.plate('data', y.shape[0])`."
        )


def _data_plate(trace: Trace, observed: list[Site], plate: str | None) -> str | None:
    """The given plate; the one that the model subsamples; else the one with the most observed sites."""
    around = list(dict.fromkeys(name for site in observed for name in plate_dims(site)))
    if plate is not None:
        if not around:
            raise ValueError(
                f"`plate` must name a plate around an observed site, got {plate!r} for a model without any; leave it "
                "out."
            )
        check_name("The plate", plate, around)
        return plate
    subsampled = [name for name in around if _subsample_size(trace, name) is not None]
    if len(subsampled) > 1:
        raise ModelError(
            f"The model must subsample at most one plate, got {subsampled}; try "
            f"`from_numpyro(..., plate={subsampled[0]!r})`, which takes all rows of the others."
        )
    if subsampled:
        return subsampled[0]
    local = {name for site in trace.sites.values() if is_latent(site) for name in plate_dims(site)}

    def merit(name: str) -> tuple[int, bool, int]:
        inside = [site for site in observed if name in plate_dims(site)]
        return len(inside), name not in local, trace.plates[name][0]

    return max(around, key=merit) if around else None


def _subsample_size(trace: Trace, name: str | None) -> int | None:
    size, subsample_size = trace.plates.get(name or "", (0, None))
    return subsample_size if subsample_size != size else None


def _leading_axis(observed: list[Site]) -> tuple[list[Site], int | None]:
    """Without plates, the leading axis of the longest observed site; its elements are independent."""
    if not observed:
        return [], None
    longest = max(observed, key=lambda site: jnp.size(log_prob(site)))
    shape = jnp.shape(log_prob(longest))
    return [longest], (-len(shape) if shape else None)


def _by_row(values: Float[Array, "..."], dim: int | None) -> Float[Array, "row"]:
    """Sum over all axes but the data's."""
    if dim is None:
        return jnp.sum(values)[None]
    moved = jnp.moveaxis(values, dim, 0)
    return jnp.sum(moved.reshape(moved.shape[0], -1), axis=1)
