# SPDX-License-Identifier: Apache-2.0
"""Checks of a NumPyro model before it is fitted."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from quell.adapters.numpyro.addends import Likelihood, NumPyroData
from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.structure import Access, Structure, read_structure
from quell.adapters.numpyro.trace import Rows, log_prob, plate_dims
from quell.core.tiers import tiered_jit
from quell.models import ModelError
from quell.models.row_difference import random_subsets, row_difference

_NUM_PROBES = 3
"""Number of random latents at which two computations of one density must agree."""

_SMALL = (1, 1, 1)
"""Sizes of the random minibatches that are tried; one more has half of the rows."""


def first_structure(call: Call, plate: str | None = None) -> Structure:
    """The structure of a model, from its shapes; nothing is computed.

    Raises:
        ModelError: if the model cannot be run, with its error, or cannot be fitted.
    """
    found: list[Structure] = []
    eqx.filter_eval_shape(lambda given: found.append(_structure(given, plate)), call)
    return found[0]


def _structure(call: Call, plate: str | None) -> Structure:
    try:
        trace = call.trace({}, Rows())
        for site in trace.sites.values():
            _ = log_prob(site) if site["type"] == "sample" and not plate_dims(site) else None
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ModelError(
            "The model must be compilable by JAX, got one that turns array values into Python numbers, such as "
            "`int(x.max())` or `np.unique(x)`; compute them before, and pass them as arguments of their own, for "
            f"example `num_groups=8` ({str(error).splitlines()[0]})."
        ) from error
    except Exception as error:
        raise ModelError(
            f"The model cannot be run with these arguments: {type(error).__name__}: {error}. Try "
            "`numpyro.handlers.seed(model, 0)(...)`, and check the size of each `numpyro.plate`."
        ) from error
    return read_structure(trace, plate)


def choose_access(call: Call, structure: Structure) -> Likelihood:
    """The cheapest access to rows that agrees with the likelihood of all of them."""
    whole = Likelihood(call, structure, Access.GATHERED)
    if structure.num_data == 1:
        return whole
    sliced = tuple(name for name, array in call.arrays.items() if array.shape[:1] == (structure.num_data,))
    ways = [Likelihood(call, structure, Access.SLICED, sliced)] if sliced else []
    if structure.plate is not None:
        indexed = Likelihood(call, structure, Access.INDEXED)
        ways = [indexed, *ways] if structure.subsample_size is not None else [*ways, indexed]
    among = (
        np.asarray(_rows_at_probes(whole, np.arange(structure.num_data, dtype=np.int32))) if ways else np.zeros((0, 0))
    )
    return next((way for way in ways if _agrees(way, among)), whole)


def _agrees(way: Likelihood, among: Float[np.ndarray, "probe datum"]) -> bool:
    """Whether rows of random minibatches have the likelihood that they have among all; an error counts as no."""

    def evaluate(index: np.ndarray) -> np.ndarray:
        alone = np.asarray(_rows_at_probes(way, index.astype(np.int32)))
        if not np.array_equal(np.isfinite(alone), np.isfinite(among[:, index])):
            raise ValueError("Rows are finite alone or among all, but not both.")
        return alone

    try:
        subsets = random_subsets(among.shape[1], (*_SMALL, max(2, among.shape[1] // 2)))
        return row_difference(evaluate, among, subsets, rtol=1e-4) is None
    except Exception:  # a model that was not written for fewer rows may raise anything
        return False


@tiered_jit
def _rows_at_probes(likelihood: Likelihood, index: Array) -> Float[Array, "probe datum"]:
    batch: NumPyroData = jax.tree.map(lambda rows: rows[index], likelihood.data())
    structure = likelihood.structure
    return jax.vmap(lambda z: likelihood(structure.unravel(z), batch))(_probes(structure))


def check_joint(call: Call, structure: Structure) -> None:
    """Refuse a model that is finite at no random latent, and one whose log joint differs from NumPyro's.

    Raises:
        ModelError: with the site that is not finite, or both values.
    """
    ours, theirs = map(np.asarray, _joint_twice(call, structure))
    if not np.isfinite(ours).any():
        _raise_not_finite(call, structure)
    if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise ModelError(
            f"The log joint density must be NumPyro's, {theirs[0]}, got {ours[0]}: the model has something that is not "
            "supported; write it as a `quell.Model`."
        )


@tiered_jit
def _joint_twice(call: Call, structure: Structure) -> tuple[Float[Array, "probe"], Float[Array, "probe"]]:
    def joint(z: Float[Array, "latent"]) -> tuple[Array, Array]:
        latents = structure.unravel(z)
        trace = call.trace(latents, Rows())
        return jnp.sum(structure.rows_of(trace)) + structure.rest_of(trace), -call.potential_energy(latents)

    return jax.vmap(joint)(_probes(structure))


def _raise_not_finite(call: Call, structure: Structure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below says more than NumPyro's warning
        sites = call.trace(structure.unravel(_probes(structure)[0]), Rows()).sites
        names = structure.names + structure.data_sites + structure.other_sites
        found = {name: jnp.atleast_1d(log_prob(sites[name])) for name in names}
    for name, values in found.items():
        if not bool(jnp.all(jnp.isfinite(values))):
            where = tuple(int(k) for k in jnp.argwhere(~jnp.isfinite(values))[0])
            raise ModelError(
                f"The log density of site {name!r} must be finite at some random latent, got {values[where]} at "
                f"element {where}; check the data for missing values and for observations outside of the support."
            )


def _probes(structure: Structure) -> Float[Array, "probe latent"]:
    return 0.5 * jax.random.normal(jax.random.key(0), (_NUM_PROBES, structure.latent_dim))
