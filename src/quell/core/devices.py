# SPDX-License-Identifier: Apache-2.0
"""Many devices: rows of data are spread over a mesh, and all else is the same on each device.

A program does not know how many devices there are. It says which arrays are spread, and the compiler divides the work
and inserts the sums over devices. Without a mesh in use nothing happens.
"""

import contextlib
import zlib
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from quell.core.processes import gather

ROWS = "rows"
"""Name of the only axis of the mesh that `mesh="all"` makes."""

WIDE = 2**24
"""A matrix of parameters with at least this many numbers is spread by its rows, where one process has all devices."""


def checked_mesh(mesh: Mesh | Literal["all"] | None) -> Mesh | None:
    """The mesh that a fit uses, with axes that the compiler may divide as it likes.

    Args:
        mesh: of any shape; rows are spread over all its axes. `"all"` for all devices of all processes.
    """
    if mesh is None:
        return None
    if isinstance(mesh, str) and mesh == "all":
        return Mesh(np.asarray(jax.devices()), (ROWS,), axis_types=(AxisType.Auto,))
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"`mesh` was given as {mesh!r}. A `jax.sharding.Mesh` or the word 'all' was needed. "
            "Write for example `mesh='all'` or `mesh=jax.make_mesh((4,), ('rows',))`."
        )
    if jax.process_count() > 1 and {d.process_index for d in mesh.devices.flat} != set(range(jax.process_count())):
        raise ValueError(
            f"`mesh` was given with devices of some of the {jax.process_count()} processes. Devices of all of them "
            "were needed. Write `mesh='all'`."
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def in_use(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which programs are compiled for a mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def num_devices() -> int:
    """Devices of the mesh in use; one where there is none."""
    mesh = _mesh()
    return 1 if mesh is None else mesh.size


def spread(tree: PyTree, *, leading: int = 1) -> PyTree:
    """Spread arrays over the devices by the first of their leading axes that can be divided.

    Args:
        tree: of arrays that share their leading axes.
        leading: how many of them may be divided.
    """
    if (mesh := _mesh()) is None:
        return tree
    shape = jax.tree.leaves(tree)[0].shape
    axis = next((k for k in range(leading) if shape[k] % mesh.size == 0), None)
    if axis is None:
        return tree
    spec = PartitionSpec(*[None] * axis, mesh.axis_names)
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, spec), tree)


def settle(tree: PyTree) -> PyTree:
    """Keep the state of a fit where it belongs: the same on all devices, and wide matrices spread by their rows."""
    if (mesh := _mesh()) is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, _home(leaf.shape, mesh)), tree)


def place_state(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Put the state of a fit on its devices, as `settle` keeps it."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: put(leaf, NamedSharding(mesh, _home(leaf.shape, mesh))), tree)


def put(leaf: Array, sharding: NamedSharding) -> Array:
    """Put an array that all processes hold alike on devices that may belong to others too."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    is_own = jax.process_count() > 1 and leaf.is_fully_addressable
    return jax.device_put(np.asarray(leaf) if is_own else leaf, sharding)


def place_rows(data: PyTree, mesh: Mesh | None) -> PyTree:
    """Put rows on the devices of a mesh: an equal share on each.

    Where they cannot be divided all of them are put on each device. With several processes each has its own rows, and
    all together are the data.
    """
    if mesh is None:
        return data
    if jax.process_count() > 1:
        return _place_shards(data, mesh)
    divides = jax.tree.leaves(data)[0].shape[0] % mesh.size == 0
    spec = PartitionSpec(mesh.axis_names) if divides else PartitionSpec()
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), data)


def check_divides(num_devices: int, num_data: int, batch_size: int | None, num_replicates: int) -> None:
    """Refuse steps whose work cannot be divided over the devices of a mesh.

    Args:
        num_devices: of the mesh.
        num_data: rows of all data.
        batch_size: rows of a minibatch; `None` for all data.
        num_replicates: with minibatches of their own.
    """
    if (batch_size or num_data) % num_devices == 0:
        return
    if batch_size is not None and num_replicates % num_devices == 0:
        return
    here = f"`mesh` was given with {num_devices} devices"
    if batch_size is None:
        raise ValueError(
            f"{here} for steps that see all {num_data} data. A number of data that the devices divide was needed. "
            f"Leave out {num_data % num_devices} rows, take a mesh that divides {num_data}, or minibatches: "
            f"`sampler=quell.Sampler(10, {_multiple(100, num_devices)})`."
        )
    raise ValueError(
        f"{here} for minibatches of {batch_size}. A minibatch that the devices divide, or as many replicates, was "
        f"needed. Write for example `batch_size={_multiple(batch_size, num_devices)}`."
    )


def _mesh() -> AbstractMesh | None:
    """The mesh in use; none within a program that is written for one of its devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.size > 1 and all(kind == AxisType.Auto for kind in mesh.axis_types) else None


def _multiple(number: int, divisor: int) -> int:
    return -(-number // divisor) * divisor


def _home(shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    is_wide = jax.process_count() == 1 and len(shape) == 2 and shape[0] * shape[1] >= WIDE and shape[0] % mesh.size == 0
    return PartitionSpec(mesh.axis_names) if is_wide else PartitionSpec()


def _place_shards(data: PyTree, mesh: Mesh) -> PyTree:
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(data)}
    rows = [np.ascontiguousarray(leaf) for leaf in named.values()]
    num = rows[0].shape[0]
    local = sum(d.process_index == jax.process_index() for d in mesh.devices.flat)
    kind = ", ".join(f"{name} {leaf.dtype}{list(leaf.shape[1:])}" for name, leaf in zip(named, rows, strict=True))
    own = np.asarray([_checksum([kind.encode()]), local, num, _checksum(rows)], np.int32)
    kinds, devices, lengths, sums = gather(own).T.tolist()
    if len(set(kinds)) > 1:
        raise ValueError(
            f"The processes were given rows of different kinds: process {jax.process_index()} has {kind}. The same "
            "names, dtypes and shapes of a row were needed in all of them. Convert them before, for example with "
            "`array.astype('float32')`."
        )
    if len(set(lengths)) > 1:
        raise ValueError(
            f"The processes were given {', '.join(map(str, lengths))} rows. As many in each process were needed. Leave "
            f"out rows, so that each process has {min(lengths)}."
        )
    if len(set(devices)) > 1:
        raise ValueError(
            f"The processes have {', '.join(map(str, devices))} devices. As many in each were needed. Give `mesh` as "
            "many devices of each process, or start as many in each."
        )
    if len(set(sums)) == 1:
        raise ValueError(
            f"All {len(sums)} processes were given the same {num} rows. Rows of its own for each were needed, because "
            "all together are the data. Read another part in each, for example by `jax.process_index()`, or give "
            "`quell fit` a pattern of files as `--data`."
        )
    if num % local:
        raise ValueError(
            f"Each process was given {num} rows for {local} devices. A number that they divide was needed. "
            f"Leave out {num % local} rows in each process."
        )
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), data)


def _checksum(parts: list[Any]) -> int:
    """A number of 31 bits that depends on every byte."""
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found >> 1
