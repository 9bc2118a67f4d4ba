# SPDX-License-Identifier: Apache-2.0
"""`quell.from_numpyro`: a NumPyro model as a model of quell."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from quell.adapters.numpyro.addends import Likelihood, NumPyroPrior, normal_moments
from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.checks import check_joint, choose_access, first_structure
from quell.adapters.numpyro.structure import Access, Structure
from quell.adapters.numpyro.trace import Rows
from quell.models import AbstractDataExpansion, AbstractModel, AbstractPrior, FunctionDataExpansion


class NumPyroModel(AbstractModel):
    """A NumPyro model with unconstrained latents, made by `from_numpyro`.

    Args:
        data: that minibatches are taken from.
        prior: latents with the Jacobians of their transforms, and observations outside the data's plate.
        likelihood: of the sites inside the plate.
    """

    data: PyTree
    prior: AbstractPrior
    likelihood: Likelihood

    @property
    def structure(self) -> Structure:
        """Latents, data and plates of the model."""
        return self.likelihood.structure

    @property
    def access(self) -> Access:
        """How the likelihood of a minibatch is computed."""
        return self.likelihood.access

    @property
    def dim(self) -> int:
        return self.structure.latent_dim

    @property
    def has_independent_rows(self) -> bool:
        return True

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        return _log_likelihood(self.likelihood, z, batch)  # pyright: ignore[reportCallIssue]

    def data_expansion(self) -> AbstractDataExpansion | None:
        return FunctionDataExpansion.from_data(self.data, self.likelihood, self.structure.unravel)

    def unravel(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        return self.structure.unravel(z)

    def constrain(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        """Latents in their supports and deterministic sites, by name."""
        sites = self.likelihood.call.trace(self.structure.unravel(z), Rows()).sites
        wanted = {*self.structure.names, *(name for name, site in sites.items() if site["type"] == "deterministic")}
        return {name: site["value"] for name, site in sites.items() if name in wanted}

    def __repr__(self) -> str:
        """The data's plate and the sizes, in one line."""
        plate = f"plate={self.structure.plate!r}, " if self.structure.plate else ""
        return f"NumPyroModel({plate}num_data={self.num_data}, dim={self.dim})"


@functools.partial(eqx.filter_jit, inline=True)  # pyright: ignore[reportCallIssue]
def _log_likelihood(likelihood: Likelihood, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
    """The likelihood, traced once per set of shapes, because NumPyro's handlers are slow."""
    return likelihood(likelihood.structure.unravel(z), batch)


def from_numpyro(model: Callable[..., Any], /, *args: Any, plate: str | None = None, **kwargs: Any) -> NumPyroModel:
    r"""A quell model from a NumPyro model and its arguments.

    Latents are unconstrained, with the Jacobians of their transforms in the prior. Observed sites and factors inside
    a plate give the likelihood, one value per row, and minibatches are taken along that plate; without a plate, along
    the leading axis of the observed site. Sites outside of the plate are never subsampled. Latents inside the plate,
    one per row, are part of the flat latent like all others.

    For a minibatch the model is run with its array arguments sliced to the rows, or with the plate restricted to them;
    if neither gives the likelihood of those rows (the model needs all data at once), they are taken from the
    likelihood of all rows, at that cost. `model.access` says which.

    Args:
        model: a function with NumPyro primitives.
        args: of the model.
        plate: the data's plate; by default the one that the model subsamples, else the one with the most observed
            sites.
        kwargs: of the model.

    Returns:
        A model whose posterior samples have the names of the sites and are in their supports.

    Raises:
        ModelError: for discrete latents, `numpyro.param` sites, a model that cannot be run or is nowhere finite.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, quell
        >>> def coin(tosses):
        ...     heads = numpyro.sample("heads", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("tosses", tosses.shape[0]):
        ...         numpyro.sample("obs", dist.Bernoulli(heads), obs=tosses)
        >>> quell.from_numpyro(coin, jnp.array([1, 1, 0]))
        NumPyroModel(plate='tosses', num_data=3, dim=1)
    """
    call = Call(model, (args, kwargs))
    structure = first_structure(call, plate)
    check_joint(call, structure)
    return build(choose_access(call, structure))


def build(likelihood: Likelihood) -> NumPyroModel:
    """The model with a likelihood."""
    call, structure = likelihood.call, likelihood.structure
    prior = NumPyroPrior(call, structure, normal_moments(call, structure))
    return NumPyroModel(likelihood.data(), prior, likelihood)
