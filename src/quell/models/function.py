# SPDX-License-Identifier: Apache-2.0
"""A model written as plain JAX functions on any tree of latents."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from quell.core.checks import check_count, check_finite
from quell.core.numbers import as_numbers, check_real, check_width
from quell.core.put import put
from quell.data import DiskRows
from quell.data.access import check_disk_rows
from quell.models.base import AbstractDataExpansion, AbstractModel
from quell.models.data_expansion import FunctionDataExpansion
from quell.models.prior import AbstractPrior, FunctionPrior


class Model(AbstractModel):
    """A model from a per-datum log-likelihood, a log-prior and data.

    Args:
        log_likelihood: `log_likelihood(latent, batch) -> [b]`, one value per datum of the batch.
        log_prior: `log_prior(latent) -> scalar`, or a prior such as `NormalPrior()` over the flattened
            latent, whose closed form then becomes available.
        data: a tree of arrays that share their leading axis, or `quell.DiskRows`.
        latent: an example of the latent: a tree of arrays (values do not matter), or the number of
            coordinates of a flat one.

    Example:
        >>> import jax.numpy as jnp, quell
        >>> model = quell.Model(
        ...     lambda z, x: -0.5 * (x - z["mean"]) ** 2,
        ...     lambda z: -0.5 * z["mean"] ** 2,
        ...     data=jnp.arange(3.0),
        ...     latent={"mean": jnp.zeros(())},
        ... )
        >>> model
        Model(num_data=3, dim=1)
    """

    data: PyTree
    prior: AbstractPrior
    likelihood: Callable[[Any, Any], Array]
    flat_latent: Float[Array, "latent"]
    unflatten: Callable[[Array], Any] = eqx.field(static=True)

    def __init__(
        self,
        log_likelihood: Callable[[Any, Any], Array],
        log_prior: Callable[[Any], Array] | AbstractPrior,
        data: PyTree,
        latent: PyTree | int,
    ) -> None:
        """Flatten the latent, and check that the data arrays belong together."""
        is_count = isinstance(latent, int | np.integer)
        if is_count:
            check_count("latent", latent)
        example = jnp.zeros(int(latent)) if is_count else latent
        self.flat_latent, self.unflatten = ravel_pytree(jax.tree.map(_as_float, example))
        self.likelihood = log_likelihood
        flat = self.unflatten
        self.prior = log_prior if isinstance(log_prior, AbstractPrior) else FunctionPrior(lambda z: log_prior(flat(z)))
        self.data = data if isinstance(data, DiskRows) else jax.tree.map(_as_data, data)
        _check_data(self.data)

    @property
    def dim(self) -> int:
        return self.flat_latent.shape[0]

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        return self.likelihood(self.unflatten(z), batch)

    def data_expansion(self) -> AbstractDataExpansion | None:
        return FunctionDataExpansion.from_data(self.data, self.likelihood, self.unflatten)

    def unravel(self, z: Float[Array, "latent"]) -> Any:
        return self.unflatten(z)

    def __repr__(self) -> str:
        """Size of the model in one line."""
        return f"Model(num_data={self.num_data}, dim={self.dim})"


def _as_float(leaf: Any) -> Array:
    return jnp.asarray(leaf, dtype=jnp.result_type(leaf, float))


def _as_data(leaf: Any) -> Array:
    array = as_numbers("data", leaf)
    check_real("data", array)
    check_width("data", array)
    return put(array)


def _check_data(data: PyTree) -> None:
    if isinstance(data, DiskRows):
        return check_disk_rows(data, _begin_check)
    leaves = jax.tree.leaves(data)
    shapes = [leaf.shape for leaf in leaves]
    if not shapes or any(shape[:1] in ((), (0,)) for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
        raise ValueError(f"`data` must be arrays that share their leading axis, one entry per datum, got {shapes}.")
    _check_numbers(data)


def _begin_check() -> Callable[[PyTree], None]:
    return _check_numbers


def _check_numbers(data: PyTree) -> None:
    for leaf in jax.tree.leaves(data):
        if jnp.issubdtype(leaf.dtype, jnp.inexact):
            check_finite("data", leaf)
