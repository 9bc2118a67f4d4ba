# SPDX-License-Identifier: Apache-2.0
"""`quell.from_numpyro`: a NumPyro model as a model of quell."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from quell.adapters.numpyro_call import Call
from quell.adapters.numpyro_prior import NumPyroPrior, normal_moments
from quell.adapters.numpyro_run import Rows, log_prob, plate_dims
from quell.adapters.numpyro_structure import Access, Structure, read_structure
from quell.models import AbstractDataExpansion, AbstractModel, AbstractPrior, FunctionDataExpansion, ModelError
from quell.quadratic import Quadratic, expand_function

_NUM_PROBES = 3
"""Random latents at which a way to take a minibatch must agree with the whole likelihood."""


class NumPyroData(NamedTuple):
    """What a minibatch takes rows of.

    Attributes:
        arrays: the arguments that are cut, by name.
        row: their numbers, where they are needed.
    """

    arrays: dict[str, Array]
    row: Int[Array, "datum"] | None


class Likelihood(eqx.Module):
    """Log-likelihood of some rows, in the way that the model allows.

    Args:
        call: the model.
        structure: of it.
        access: how rows are taken.
        sliced: positions of the arrays that are cut.
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
        """One value a row of the batch."""
        structure, call = self.structure, self.call
        if self.access is Access.GATHERED:
            return structure.rows_of(call.run(latents, Rows()))[batch.row]
        if self.access is Access.INDEXED:
            values = structure.rows_of(call.run(latents, Rows(structure.plate, structure.dim, batch.row)))
            return values * (values.shape[0] / structure.num_data)  # the plate has scaled them up
        arrays = [batch.arrays.get(name, array) for name, array in zip(call.names, call.arrays, strict=True)]
        rows = Rows(structure.plate, structure.dim, batch.row, is_sliced=True)
        return structure.rows_of(call.run(latents, rows, arrays))


class NumPyroModel(AbstractModel):
    """A NumPyro model, its latents mapped to the real line; made by `from_numpyro`.

    Args:
        data: what a minibatch takes rows of.
        prior: latents with the Jacobians of their maps, and observations outside the data's plate.
        likelihood: of the sites inside the plate.
    """

    data: PyTree
    prior: AbstractPrior
    likelihood: Likelihood

    @property
    def structure(self) -> Structure:
        """What the model is made of."""
        return self.likelihood.structure

    @property
    def access(self) -> Access:
        """How a minibatch is taken."""
        return self.likelihood.access

    @property
    def dim(self) -> int:
        return self.structure.latent_dim

    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        return self.likelihood(self.structure.unravel(z), batch)

    def expand(self, anchor: Float[Array, "latent"], batch: PyTree) -> Quadratic:
        return expand_function(lambda z: jnp.sum(self.log_likelihood(z, batch)), anchor)

    def data_expansion(self) -> AbstractDataExpansion | None:
        return FunctionDataExpansion.from_data(self.data, self.likelihood, self.structure.unravel)

    @property
    def has_cheap_expansion(self) -> bool:
        return False

    @property
    def likelihood_is_quadratic(self) -> bool:
        return False

    def unravel(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        return self.structure.unravel(z)

    def constrain(self, z: Float[Array, "latent"]) -> dict[str, Float[Array, "..."]]:
        """Latents in their own supports and deterministic sites, by the names of their sites."""
        sites = self.likelihood.call.run(self.structure.unravel(z), Rows()).sites
        wanted = {*self.structure.names, *(name for name, site in sites.items() if site["type"] == "deterministic")}
        return {name: site["value"] for name, site in sites.items() if name in wanted}

    def __repr__(self) -> str:
        """Size of the model and its data's axis in one line."""
        plate = f"plate={self.structure.plate!r}, " if self.structure.plate else ""
        return f"NumPyroModel({plate}num_data={self.num_data}, dim={self.dim})"


def from_numpyro(model: Callable[..., Any], *args: Any, plate: str | None = None, **kwargs: Any) -> NumPyroModel:
    r"""A NumPyro model, ready to be fitted.

    Latents are mapped to the real line, with the Jacobians of the maps in the prior. Observed sites and factors inside
    a plate give the likelihood, one value a row, and the plate is the axis that minibatches are taken along; so are
    the elements of an observed site without a plate. Sites outside of it are never subsampled. Latents inside the
    plate, one a row, are part of the flat latent like all others.

    A minibatch runs the model with its array arguments cut to the rows, or with the plate told which rows it sees;
    where neither gives the likelihood of those rows (the model looks at all data at once), it takes them from the
    likelihood of all rows, at that cost. `model.access` says which.

    Args:
        model: a function with NumPyro primitives.
        args: of the model.
        plate: the data's plate, where there are several; by default the one that the model subsamples, else the one
            with the most observed sites.
        kwargs: of the model.

    Returns:
        A model whose posterior samples come back under the names of the sites, in their supports.

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
    call = Call.of(model, args, kwargs)
    structure = first_structure(call, plate)
    likelihood = choose_access(call, structure)
    _check_finite(likelihood)
    _check_joint(likelihood)
    return build(likelihood)


def build(likelihood: Likelihood) -> NumPyroModel:
    """The model around a likelihood."""
    call, structure = likelihood.call, likelihood.structure
    prior = NumPyroPrior(call, structure, normal_moments(call, structure))
    return NumPyroModel(likelihood.data(), prior, likelihood)


def choose_access(call: Call, structure: Structure) -> Likelihood:
    """The cheapest way to take rows that agrees with the likelihood of all of them."""
    whole = Likelihood(call, structure, Access.GATHERED)
    if structure.num_data == 1:
        return whole
    sliced = tuple(k for k, array in enumerate(call.arrays) if array.shape[:1] == (structure.num_data,))
    ways = [Likelihood(call, structure, Access.SLICED, sliced)] if sliced else []
    if structure.plate is not None:
        indexed = Likelihood(call, structure, Access.INDEXED)
        ways = [indexed, *ways] if structure.subsample_size is not None else [*ways, indexed]
    return next((way for way in ways if _agree(way, whole)), whole)


def _agree(way: Likelihood, whole: Likelihood) -> bool:
    """Whether rows taken one way have the values that they have among all; errors of a cut model count as no."""
    num_data = whole.structure.num_data
    index = jnp.unique(jnp.array([num_data - 1, num_data // 3]))
    batch = jax.tree.map(lambda rows: rows[index], way.data())
    for z in _probes(whole.structure):
        latents = whole.structure.unravel(z)
        try:
            found = way(latents, batch)
        except Exception:  # whatever a model raises that was not written for fewer rows
            return False
        expected = whole(latents, NumPyroData({}, index))
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True):
            return False
    return True


def _probes(structure: Structure) -> Float[Array, "probe latent"]:
    return 0.5 * jax.random.normal(jax.random.key(0), (_NUM_PROBES, structure.latent_dim))


def first_structure(call: Call, plate: str | None = None) -> Structure:
    """What a first run shows.

    Raises:
        ModelError: with what the model raised, or what cannot be fitted.
    """
    try:
        first = call.run({}, Rows())
        for site in first.sites.values():
            _ = log_prob(site) if site["type"] == "sample" and not plate_dims(site) else None
    except Exception as error:
        raise ModelError(
            f"The model could not be run: {type(error).__name__}: {error}. A NumPyro model whose plates have the sizes "
            "of their data was needed, called with all of its arguments. Try "
            "`numpyro.handlers.seed(model, 0)(...)` by hand, and look at the size of each `numpyro.plate`."
        ) from error
    return read_structure(first, plate)


def _check_finite(likelihood: Likelihood) -> None:
    """Refuse a model that is finite at none of the probes, and name the site."""
    call, structure = likelihood.call, likelihood.structure
    runs = [call.run(structure.unravel(z), Rows()) for z in _probes(structure)]
    if any(bool(jnp.isfinite(jnp.sum(structure.rows_of(one)) + structure.rest_of(one))) for one in runs):
        return
    for name in (*structure.names, *structure.data_sites, *structure.other_sites):
        values = jnp.atleast_1d(log_prob(runs[0].sites[name]))
        if not bool(jnp.all(jnp.isfinite(values))):
            where = tuple(int(k) for k in jnp.argwhere(~jnp.isfinite(values))[0])
            raise ModelError(
                f"The log density of site {name!r} is {values[where]} at element {where}, and at no random latent was "
                "the model finite. Finite values were needed. Look for missing values in the data, and for "
                "observations outside of the support."
            )


def _check_joint(likelihood: Likelihood) -> None:
    """Refuse a model that was not understood: its log joint must be NumPyro's own."""
    call, structure = likelihood.call, likelihood.structure
    latents = structure.unravel(_probes(structure)[0])
    ours = call.run(latents, Rows())
    log_joint = jnp.sum(structure.rows_of(ours)) + structure.rest_of(ours)
    theirs = -call.potential_energy(latents)
    if not np.allclose(log_joint, theirs, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise ModelError(
            f"The model's log joint is {theirs} in NumPyro and {log_joint} as it was read. Equal values were needed, "
            "so the model holds something that is not understood. Write it as a `quell.Model`."
        )
