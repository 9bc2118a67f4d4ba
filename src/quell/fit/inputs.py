# SPDX-License-Identifier: Apache-2.0
"""Checks of data, parameters, sampler and optimiser against each other, and data placed on their devices."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

from quell.core.checks import check_finite
from quell.core.devices import check_divides, num_devices, place_rows, place_state
from quell.core.processes import are_several, hint_if_killed
from quell.data.access import on_disk
from quell.families import AbstractFamily
from quell.fit.defaults import LARGEST_FULL
from quell.fit.natural_gradient import natural_num_data
from quell.fit.options import FitOptions
from quell.models import AbstractModel


def placed(model: AbstractModel, mesh: Mesh | None) -> AbstractModel:
    """The model with its rows spread over a mesh, and all else on each device."""
    if mesh is None:
        return model
    if on_disk(model.data):
        raise ValueError(
            f"`mesh` must be None for data on disk, which one process reads for one device, got {model.data}; leave "
            "out `mesh`, or give each process as many rows as its memory holds."
        )
    arrays, static = eqx.partition(model, eqx.is_array)
    with hint_if_killed("See the errors of the other processes, and restart all of them.", several=are_several()):
        rows = place_rows(arrays.data, mesh)
        others = place_state(eqx.tree_at(lambda m: m.data, arrays, None), mesh)
    return eqx.combine(eqx.tree_at(lambda m: m.data, others, rows, is_leaf=lambda leaf: leaf is None), static)


def check_sizes(options: FitOptions, num_data: int) -> None:
    """Refuse data and minibatches that the devices in use cannot divide, and steps made for another number of data.

    Each device has all of few data, and a minibatch of the default size may be the same work on each.
    """
    if num_data > LARGEST_FULL:
        check_divides(num_devices(), num_data, None, 1)
    if (sampler := options.sampler) is not None:
        check_divides(num_devices(), num_data, sampler.batch_size, 1 if sampler.shared else sampler.num_replicates)
    made_for = None if options.optimizer is None else natural_num_data(options.optimizer)
    if made_for not in (None, num_data):
        raise ValueError(
            f"`optimizer` must be `quell.natural_gradient` for a problem with all {num_data} data, those of all "
            f"processes together, got one for {made_for}; leave `optimizer` out, or make it for that problem."
        )


def checked_params(params: PyTree, family: AbstractFamily) -> PyTree:
    """Refuse parameters to start from that are not finite numbers in the family's shape."""
    needed, given = (jax.tree.map(jnp.shape, tree) for tree in (jax.eval_shape(lambda: family.init()), params))
    if jax.tree.structure(needed) != jax.tree.structure(given) or needed != given:
        raise ValueError(
            f"`params` must have the shapes {needed} of {family}, got {given}; try `params=family.init()`, or the "
            "`params` of a result with the same family."
        )
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, float)), params)
    for leaf in jax.tree.leaves(arrays):
        check_finite("params", leaf)
    return arrays
