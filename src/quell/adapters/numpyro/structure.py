# SPDX-License-Identifier: Apache-2.0
"""What a NumPyro model is made of: its latents, the axis of its data, and how a minibatch of them is taken."""

import dataclasses
import enum
import math
from collections.abc import Mapping

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.adapters.numpyro.run import Run, Site, is_latent, log_prob, plate_dims, unconstrained_shape
from quell.core.checks import check_name
from quell.models import ModelError


class Access(enum.Enum):
    """How the likelihood of some rows is computed; the value says so in words."""

    SLICED = "arguments cut to the rows of a minibatch"
    INDEXED = "the plate told the rows of a minibatch"
    GATHERED = "the likelihood of all rows, of which a minibatch takes its own"


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a run of the model has shown.

    Attributes:
        names: of the latent sites, in the order of the flat latent.
        shapes: of their unconstrained values.
        local: the latents inside the data's plate, one for each row.
        plate: of the data; `None` where the leading axis of an observed site takes its place.
        dim: the data's axis, counted from the right.
        num_data: its length.
        subsample_size: of the data's plate, where the model wrote one.
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

    @property
    def all_sites(self) -> tuple[str, ...]:
        """Names of latents, data and other observations."""
        return self.names + self.data_sites + self.other_sites

    def unravel(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        """Unconstrained values by the names of their sites."""
        values, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            values[name] = z[start : start + math.prod(shape)].reshape(shape)
            start += math.prod(shape)
        return values

    def rows_of(self, run: Run) -> Float[Array, "row"]:
        """Log-likelihood of each row that the plate saw."""
        pieces = [_by_row(log_prob(run.sites[name]), self.dim) for name in self.data_sites]
        return sum(pieces[1:], pieces[0]) if pieces else jnp.zeros(1)

    def rest_of(self, run: Run) -> Float[Array, ""]:
        """Log density of everything outside the data's plate: the latents on the real line, and other observations."""
        pieces = [jnp.sum(log_prob(run.sites[name])) for name in (*self.names, *self.other_sites)]
        return sum(pieces[1:], pieces[0])


def read_structure(run: Run, plate: str | None) -> Structure:
    """Find latents and the axis of the data in one run of a model.

    Raises:
        ModelError: for what cannot be fitted, with the way out.
    """
    sites = run.sites
    _check_sites(sites)
    latents = [site for site in sites.values() if is_latent(site)]
    observed = [site for site in sites.values() if site["type"] == "sample" and site["is_observed"]]
    for site in observed:
        _check_shape(site, run)
    name = _data_plate(run, observed, plate)
    if name is None:
        inside, dim = _leading_axis(observed)
    else:
        inside = [site for site in observed if name in plate_dims(site)]
        dim = plate_dims(inside[0])[name] if inside else None
    num_data = jnp.shape(log_prob(inside[0]))[dim] if inside and dim is not None else 1
    chosen = [site["name"] for site in inside]
    return Structure(
        names=tuple(site["name"] for site in latents),
        shapes=tuple(unconstrained_shape(site) for site in latents),
        local=tuple(site["name"] for site in latents if name in plate_dims(site)),
        plate=name,
        dim=dim,
        num_data=num_data,
        subsample_size=_subsample_size(run, name),
        data_sites=tuple(chosen),
        other_sites=tuple(site["name"] for site in observed if site["name"] not in chosen),
    )


def _check_sites(sites: Mapping[str, Site]) -> None:
    for name, site in sites.items():
        if site["type"] in ("param", "mutable"):
            raise ModelError(
                f"The model has the `{site['type']}` site {name!r}. A model of random variables alone was needed. "
                f"Give it a prior with `numpyro.sample({name!r}, ...)`, or fix it with `numpyro.handlers.substitute`."
            )
        if is_latent(site) and site["fn"].support.is_discrete:
            raise ModelError(
                f"The latent {name!r} is discrete ({type(site['fn']).__name__}). Continuous latents were needed. Sum "
                "it out, for example with `dist.MixtureSameFamily` or "
                "`numpyro.factor` and `jax.nn.logsumexp`, or write a `quell.Model` with `quell.Bernoulli` or "
                "`quell.Categorical`."
            )
    if not any(is_latent(site) for site in sites.values()):
        raise ModelError(
            "The model has no latent site. At least one `numpyro.sample` without `obs` was needed. "
            "Leave out the `obs=` of what is unknown."
        )


def _check_shape(site: Site, run: Run) -> None:
    """Refuse observations that do not have the shape of the plates around them."""
    given, needed = jnp.shape(site["value"]), tuple(site["fn"].shape())
    fits = len(given) <= len(needed) and all(
        one in (1, other) for one, other in zip(given[::-1], needed[::-1], strict=False)
    )
    if plate_dims(site) and not fits:
        plates = ", ".join(f"{name!r} of size {run.plates[name][0]}" for name in plate_dims(site))
        raise ModelError(
            f"The site {site['name']!r} is observed with shape {given} inside the plate {plates}. Shape {needed} was "
            "needed. Give the plate the number of the data, for example `numpyro.plate('data', y.shape[0])`."
        )


def _data_plate(run: Run, observed: list[Site], plate: str | None) -> str | None:
    """The plate that was named; the one that the model subsamples; else the one with the most observations."""
    around = list(dict.fromkeys(name for site in observed for name in plate_dims(site)))
    if plate is not None:
        if not around:
            raise ValueError(
                f"`plate` was given as {plate!r}, and no observed site is inside a plate. A model with "
                f"`with numpyro.plate({plate!r}, ...)` around its observed sites was needed. Leave out `plate`."
            )
        check_name("plate", plate, around)
        return plate
    subsampled = [name for name in around if _subsample_size(run, name) is not None]
    if len(subsampled) > 1:
        raise ModelError(
            f"The plates {subsampled} are subsampled. One was needed, as the axis of the data. "
            f"Write `from_numpyro(..., plate={subsampled[0]!r})`; the others are then taken whole."
        )
    if subsampled:
        return subsampled[0]
    local = {name for site in run.sites.values() if is_latent(site) for name in plate_dims(site)}

    def merit(name: str) -> tuple[int, bool, int]:
        inside = [site for site in observed if name in plate_dims(site)]
        return len(inside), name not in local, run.plates[name][0]

    return max(around, key=merit) if around else None


def _subsample_size(run: Run, name: str | None) -> int | None:
    size, subsample_size = run.plates.get(name or "", (0, None))
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
