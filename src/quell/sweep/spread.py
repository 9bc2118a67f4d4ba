# SPDX-License-Identifier: Apache-2.0
"""Fits over the devices of this process, and subsets over processes."""

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from quell.fit.loop import FIT_AXIS
from quell.fit.plan import FitPlan


def local_mesh(num_fits: int) -> Mesh:
    """The devices of this process, no more than fits."""
    return Mesh(np.array(jax.local_devices()[:num_fits]), (FIT_AXIS,))


def filled_up(num_fits: int) -> int:
    """As many fits as give every device the same number; those beyond `num_fits` are run and left out."""
    num_devices = local_mesh(num_fits).size
    return -(-num_fits // num_devices) * num_devices


def spread(plan: FitPlan, mesh: Mesh) -> FitPlan:
    """The same plan with its fits over several devices; each holds all the data."""
    if mesh.size == 1:
        return plan
    arrays, rest = eqx.partition(plan.algorithm, eqx.is_array)
    everywhere = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec()))
    return dataclasses.replace(plan, algorithm=eqx.combine(everywhere, rest), fit_mesh=mesh)


def own_share(names: Sequence[str]) -> list[str]:
    """The subsets that this process fits: every so many, so that the growing ones are dealt out evenly."""
    return list(names)[jax.process_index() :: jax.process_count()]
