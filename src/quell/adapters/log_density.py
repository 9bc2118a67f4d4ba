# SPDX-License-Identifier: Apache-2.0
"""`quell.from_log_density`: any log density as a model of quell."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import keystr, tree_flatten_with_path
from jaxtyping import Array, Float, PyTree

from quell.core.checks import check_count
from quell.models import AbstractDataExpansion, AbstractModel, AbstractPrior
from quell.models.prior import FunctionPrior

CONSTRAINTS = {
    "positive": "positive",
    "unit interval": "unit_interval",
    "simplex": "simplex",
    "ordered": "ordered_vector",
    "correlation": "corr_matrix",
    "Cholesky factor of a correlation": "corr_cholesky",
}
"""Constraints by name, and what NumPyro calls them."""


class LogDensityModel(AbstractModel):
    """A log density, made by `from_log_density`: one datum, which is all that it knows.

    Args:
        data: a placeholder for what the density has inside.
        prior: nothing, since all is in the density.
        density: of the latent as its user writes it.
        transforms: of each leaf from unconstrained numbers; `None` for a leaf that is free.
        flat_latent: an example of the flat, unconstrained latent.
        unflatten: to unconstrained leaves.
        treedef: of the latent.
    """

    data: PyTree
    prior: AbstractPrior
    density: Callable[[Any], Array]
    transforms: tuple[Any, ...] = eqx.field(static=True)
    flat_latent: Float[Array, "latent"]
    unflatten: Callable[[Array], Any] = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)

    @property
    def dim(self) -> int:
        return self.flat_latent.shape[0]

    @property
    def has_independent_rows(self) -> bool:
        return True

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        leaves, change = self.unflatten(z), 0.0
        for leaf, transform in zip(leaves, self.transforms, strict=True):
            if transform is not None:
                change = change + jnp.sum(transform.log_abs_det_jacobian(leaf, transform(leaf)))
        return jnp.broadcast_to(self.density(self.constrain(z)) + change, batch.shape[:1])

    def data_expansion(self) -> AbstractDataExpansion | None:
        return None

    def unravel(self, z: Float[Array, "latent"]) -> Any:
        return jax.tree.unflatten(self.treedef, self.unflatten(z))

    def constrain(self, z: Float[Array, "latent"]) -> Any:
        pairs = zip(self.unflatten(z), self.transforms, strict=True)
        leaves = [leaf if transform is None else transform(leaf) for leaf, transform in pairs]
        return jax.tree.unflatten(self.treedef, leaves)

    def __repr__(self) -> str:
        """Size of the model in one line."""
        return f"LogDensityModel(dim={self.dim})"


def from_log_density(
    log_density: Callable[[Any], Array], latent: PyTree | int, *, constraints: Mapping[str, Any] | None = None
) -> LogDensityModel:
    r"""A quell model from a log density \(\log p(x, z)\) of the latent alone, up to a constant.

    Data are inside of the function, so that every gradient sees all of them, and their number is not known: rules that
    go by it count one. `quell.Model` takes data that may be subsampled.

    Args:
        log_density: of a latent, a scalar.
        latent: an example of it: a tree of arrays (values do not matter), or the number of coordinates of a flat one.
        constraints: of some leaves, by name: `"positive"`, `"unit interval"`, `"simplex"`, `"ordered"`,
            `"correlation"`, `"Cholesky factor of a correlation"`, or a constraint of
            `numpyro.distributions.constraints`. The density is that of the constrained latent; the Jacobian of the
            transform is added. They need NumPyro.

    Example:
        >>> import jax, jax.numpy as jnp, quell
        >>> def log_density(z):
        ...     return -0.5 * jnp.sum((z["mean"] / z["scale"]) ** 2) - 3 * jnp.log(z["scale"]) - z["scale"]
        >>> latent = {"mean": jnp.zeros(3), "scale": 1.0}
        >>> quell.from_log_density(log_density, latent, constraints={"scale": "positive"})
        LogDensityModel(dim=4)
    """
    if isinstance(latent, int | np.integer):
        check_count("latent", latent)
    example = jnp.zeros(int(latent)) if isinstance(latent, int | np.integer) else latent
    paths, treedef = tree_flatten_with_path(example)
    if not paths:
        raise ValueError(f"`latent` must have at least one leaf, got {latent!r}.")
    names = [keystr(path, simple=True, separator=".") for path, _ in paths]
    unknown = [name for name in constraints or {} if name not in names]
    if unknown:
        raise ValueError(f"`constraints` must be of leaves of the latent, {names}, got {unknown[0]!r}.")
    shapes, transforms = [], []
    for name, (_, leaf) in zip(names, paths, strict=True):
        constraint = (constraints or {}).get(name)
        transform = None if constraint is None else _transform(name, constraint)
        shape = np.shape(leaf) if transform is None else _free_shape(name, transform, np.shape(leaf))
        shapes.append(jnp.zeros(shape))
        transforms.append(transform)
    flat, unflatten = ravel_pytree(shapes)
    prior = FunctionPrior(lambda z: jnp.zeros((), z.dtype))
    model = LogDensityModel(jnp.zeros(1), prior, log_density, tuple(transforms), flat, unflatten, treedef)
    found = jax.eval_shape(lambda z: log_density(model.constrain(z)), flat)
    if getattr(found, "shape", None) != ():
        raise TypeError(f"`log_density` must return a scalar, got {found}; add it up with `jnp.sum`.")
    return model


def _transform(name: str, constraint: Any) -> Any:
    try:
        from numpyro.distributions import biject_to
        from numpyro.distributions import constraints as known
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("`constraints` need NumPyro; try `pip install 'quell[numpyro]'`.") from error
    if isinstance(constraint, str):
        if constraint not in CONSTRAINTS:
            raise ValueError(f"The constraint of `{name}` must be one of {sorted(CONSTRAINTS)}, got {constraint!r}.")
        constraint = getattr(known, CONSTRAINTS[constraint])
    try:
        return biject_to(constraint)
    except NotImplementedError as error:
        raise TypeError(
            f"The constraint of `{name}` must be one of {sorted(CONSTRAINTS)} or NumPyro's, got {constraint!r}."
        ) from error


def _free_shape(name: str, transform: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the unconstrained leaf."""
    try:
        return transform.inverse_shape(shape)
    except ValueError as error:
        raise ValueError(f"The leaf `{name}` of shape {shape} cannot have its constraint: {error}") from error
