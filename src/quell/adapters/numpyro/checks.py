# SPDX-License-Identifier: Apache-2.0
"""What must hold of a NumPyro model before it is fitted."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from quell.adapters.numpyro.call import Call
from quell.adapters.numpyro.likelihood import Likelihood, NumPyroData
from quell.adapters.numpyro.run import Rows, log_prob, plate_dims
from quell.adapters.numpyro.structure import Access, Structure, read_structure
from quell.core.compilation import quick_jit
from quell.models import ModelError

_NUM_PROBES = 3
"""Random latents at which two ways to compute the same thing must agree."""


def first_structure(call: Call, plate: str | None = None) -> Structure:
    """What a first run shows; only shapes are looked at, and nothing is computed.

    Raises:
        ModelError: with what the model raised, or what cannot be fitted.
    """
    found: list[Structure] = []
    eqx.filter_eval_shape(lambda given: found.append(_structure(given, plate)), call)
    return found[0]


def _structure(call: Call, plate: str | None) -> Structure:
    try:
        first = call.run({}, Rows())
        for site in first.sites.values():
            _ = log_prob(site) if site["type"] == "sample" and not plate_dims(site) else None
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ModelError(
            "The model turns values of its arrays into Python numbers while it runs, for example with `int(x.max())` "
            "or `np.unique(x)`. A model that can be compiled was needed. Compute such numbers before, and pass them as "
            f"arguments of their own, for example `num_groups=8`. JAX said: {str(error).splitlines()[0]}"
        ) from error
    except Exception as error:
        raise ModelError(
            f"The model could not be run: {type(error).__name__}: {error}. A NumPyro model whose plates have the sizes "
            "of their data was needed, called with all of its arguments. Try "
            "`numpyro.handlers.seed(model, 0)(...)` by hand, and look at the size of each `numpyro.plate`."
        ) from error
    return read_structure(first, plate)


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
    index = jnp.asarray(np.unique([num_data - 1, num_data // 3]))
    batch = jax.tree.map(lambda rows: rows[index], way.data())
    try:
        found, expected = _rows_twice(way, batch, whole, NumPyroData({}, index), _probes(whole.structure))
    except Exception:  # whatever a model raises that was not written for fewer rows
        return False
    return found.shape == expected.shape and np.allclose(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@quick_jit
def _rows_twice(
    one: Likelihood,
    one_batch: NumPyroData,
    two: Likelihood,
    two_batch: NumPyroData,
    probes: Float[Array, "probe latent"],
) -> tuple[Array, Array]:
    def rows(z: Float[Array, "latent"]) -> tuple[Array, Array]:
        latents = one.structure.unravel(z)
        return one(latents, one_batch), two(latents, two_batch)

    return jax.vmap(rows)(probes)


def check_joint(call: Call, structure: Structure) -> None:
    """Refuse a model that is finite at no probe, and one whose log joint is not NumPyro's own.

    Raises:
        ModelError: with the site that is not finite, or with both values.
    """
    ours, theirs = _joint_twice(call, _Static(structure), _probes(structure))
    if not bool(jnp.any(jnp.isfinite(ours))):
        _name_what_is_not_finite(call, structure)
    if not np.allclose(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise ModelError(
            f"The model's log joint is {theirs[0]} in NumPyro and {ours[0]} as it was read. Equal values were needed, "
            "so the model holds something that is not understood. Write it as a `quell.Model`."
        )


class _Static(eqx.Module):
    """A structure that compiled programs take as what it is."""

    value: Structure = eqx.field(static=True)


@quick_jit
def _joint_twice(
    call: Call, structure: _Static, probes: Float[Array, "probe latent"]
) -> tuple[Float[Array, "probe"], Float[Array, "probe"]]:
    def joint(z: Float[Array, "latent"]) -> tuple[Array, Array]:
        latents = structure.value.unravel(z)
        run = call.run(latents, Rows())
        ours = jnp.sum(structure.value.rows_of(run)) + structure.value.rest_of(run)
        return ours, -call.potential_energy(latents)

    return jax.vmap(joint)(probes)


def _name_what_is_not_finite(call: Call, structure: Structure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPyro warns of what the error says better
        sites = call.run(structure.unravel(_probes(structure)[0]), Rows()).sites
        found = {name: jnp.atleast_1d(log_prob(sites[name])) for name in structure.all_sites}
    for name, values in found.items():
        if not bool(jnp.all(jnp.isfinite(values))):
            where = tuple(int(k) for k in jnp.argwhere(~jnp.isfinite(values))[0])
            raise ModelError(
                f"The log density of site {name!r} is {values[where]} at element {where}, and at no random latent was "
                "the model finite. Finite values were needed. Look for missing values in the data, and for "
                "observations outside of the support."
            )


def _probes(structure: Structure) -> Float[Array, "probe latent"]:
    return 0.5 * jax.random.normal(jax.random.key(0), (_NUM_PROBES, structure.latent_dim))
