# SPDX-License-Identifier: Apache-2.0
"""Tracing a NumPyro model at given unconstrained latents, with plates restricted to chosen rows."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from numpyro import handlers
from numpyro.distributions import ExpandedDistribution, Independent, biject_to
from numpyro.distributions.util import sum_rightmost
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

Site = dict[str, Any]


class Trace(NamedTuple):
    """The trace of a model.

    Attributes:
        sites: by name.
        plates: size and subsample size of each plate, as in the model.
    """

    sites: Mapping[str, Site]
    plates: Mapping[str, tuple[int, int | None]]


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows that a plate is restricted to.

    Attributes:
        plate: its name; `None` for all rows of every plate.
        dim: axis of the plate, counted from the right.
        index: row numbers; `None` for all.
        is_sliced: whether the model's arguments hold only these rows, so that the plate's size is their number.
        as_written: leave the plates as they are, for a model whose arguments are a minibatch.
    """

    plate: str | None = None
    dim: int | None = None
    index: Int[Array, "row"] | None = None
    is_sliced: bool = False
    as_written: bool = False


class Plates(Messenger):
    """Sets the rows of every plate, so that none draws rows at random."""

    def __init__(self, fn: Callable[..., Any], rows: Rows) -> None:
        super().__init__(fn)
        self.rows = rows
        self.sizes: dict[str, tuple[int, int | None]] = {}

    def process_message(self, msg: Site) -> None:
        if msg["type"] != "plate":
            return
        self.sizes[msg["name"]] = size, _ = msg["args"]
        if self.rows.as_written:
            return
        index = self.rows.index if msg["name"] == self.rows.plate and not self.rows.is_sliced else None
        rows = jnp.arange(size) if index is None else index
        msg["value"], msg["args"] = rows, (size, rows.shape[0])

    def postprocess_message(self, msg: Site) -> None:
        """Reorder the rows of a plate that has as many rows as it subsamples, which NumPyro leaves in their order."""
        index, dim = self.rows.index, self.rows.dim
        if msg["type"] != "subsample" or index is None or dim is None or self.rows.is_sliced:
            return
        axis = dim - (msg["kwargs"].get("event_dim") or 0)
        shape = jnp.shape(msg["value"])
        if len(shape) >= -axis and shape[axis] == index.shape[0]:
            msg["value"] = jnp.take(msg["value"], index, axis=axis)


def trace_at(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    latents: Mapping[str, Float[Array, "..."]],
    rows: Rows,
) -> Trace:
    """Trace a model with its latents at unconstrained values.

    Each latent site gets a field `log_det`, the log determinant of its transform from the real line.

    Args:
        model: with NumPyro primitives.
        args: of the model.
        kwargs: of the model.
        latents: unconstrained values by site name, of all rows; sites without one are drawn.
        rows: of the data's plate.
    """

    def substitute(site: Site) -> Any:
        if site["type"] != "sample" or site["is_observed"]:
            return None
        if site["name"] not in latents:
            return None if site["fn"].support.is_discrete else init_to_uniform(site)
        return biject_to(site["fn"].support)(_seen(site, latents[site["name"]], rows))

    plates = Plates(handlers.substitute(handlers.seed(model, rng_seed=0), substitute_fn=substitute), rows)
    trace = handlers.trace(plates).get_trace(*args, **kwargs)
    for name, value in latents.items():
        trace[name]["log_det"] = _log_det(trace[name], _seen(trace[name], value, rows))
    return Trace(trace, plates.sizes)


def _log_det(site: Site, value: Float[Array, "..."]) -> Float[Array, "..."]:
    """Log determinant of the transform from the real line to a site's support, one per element of its batch."""
    log_det = biject_to(site["fn"].support).log_abs_det_jacobian(value, site["value"])
    return sum_rightmost(log_det, jnp.ndim(log_det) - jnp.ndim(site["value"]) + len(site["fn"].event_shape))


def unconstrained_shape(site: Site) -> tuple[int, ...]:
    """Shape of a site's unconstrained value."""
    return tuple(biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"])))


def _seen(site: Site, value: Float[Array, "..."], rows: Rows) -> Float[Array, "..."]:
    """Of a latent in the data's plate, the chosen rows; of a latent in a scan, the current element."""
    current = site["infer"].get("_scan_current_index")
    if current is not None and jnp.ndim(value) > len(biject_to(site["fn"].support).inverse_shape(site["fn"].shape())):
        return value[current]
    if rows.index is None or all(frame.name != rows.plate for frame in site["cond_indep_stack"]):
        return value
    transform = biject_to(site["fn"].support)
    event_dim = site["fn"].event_dim - transform.codomain.event_dim + transform.domain.event_dim
    return jnp.take(value, rows.index, axis=rows.dim - event_dim)


def log_prob(site: Site) -> Float[Array, "..."]:
    """Log density per element of a site's batch, with the site's scale; that of a latent is unconstrained."""
    value = site["fn"].log_prob(site["value"])
    if "log_det" in site:
        value = value + site["log_det"]
    return value if site["scale"] is None else site["scale"] * value


def is_latent(site: Site) -> bool:
    """Whether a site is latent."""
    return site["type"] == "sample" and not site["is_observed"]


def base_distribution(fn: Any) -> Any:
    """A distribution without the batch and event shapes that `expand` and `to_event` gave it."""
    while isinstance(fn, Independent | ExpandedDistribution):
        fn = fn.base_dist
    return fn


def plate_dims(site: Site) -> dict[str, int]:
    """Axis of each plate around a site, counted from the right."""
    return {frame.name: frame.dim for frame in site["cond_indep_stack"]}
