# SPDX-License-Identifier: Apache-2.0
"""Many devices: rows of data are sharded over a mesh, and everything else is replicated.

A program does not know how many devices there are. It says which arrays are sharded, and the compiler divides the work
and inserts the sums over devices. Without an active mesh nothing happens.
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
"""A parameter matrix with at least this many entries is sharded by its rows, if one process owns all devices."""


def checked_mesh(mesh: Mesh | Literal["all"] | None) -> Mesh | None:
    """The mesh that a fit uses, with axes that the compiler may divide as it likes.

    Args:
        mesh: of any shape; rows are sharded over all its axes. `"all"` for all devices of all processes.
    """
    if mesh is None:
        return None
    if isinstance(mesh, str) and mesh == "all":
        return Mesh(np.asarray(jax.devices()), (ROWS,), axis_types=(AxisType.Auto,))
    if not isinstance(mesh, Mesh):
        raise TypeError(
            f"`mesh` must be a `jax.sharding.Mesh` or 'all', got {mesh!r}; try `mesh='all'` or "
            "`mesh=jax.make_mesh((4,), ('rows',))`."
        )
    owners = {device.process_index for device in mesh.devices.flat}
    if jax.process_count() > 1 and owners != set(range(jax.process_count())):
        raise ValueError(
            f"`mesh` must have devices of all {jax.process_count()} processes, got those of {sorted(owners)}; try "
            "`mesh='all'`."
        )
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def in_use(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """A context in which programs are compiled for a mesh."""
    return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def num_devices() -> int:
    """Number of devices of the active mesh; one without a mesh."""
    mesh = _mesh()
    return 1 if mesh is None else mesh.size


def spread(tree: PyTree, *, leading: int = 1) -> PyTree:
    """Shard arrays over the devices along the first of their leading axes that can be divided evenly.

    Args:
        tree: of arrays that share their leading axes.
        leading: number of leading axes to try.
    """
    if (mesh := _mesh()) is None:
        return tree
    shape = jax.tree.leaves(tree)[0].shape
    axis = next((k for k in range(leading) if shape[k] % mesh.size == 0), None)
    if axis is None:
        return tree
    spec = PartitionSpec(*[None] * axis, mesh.axis_names)
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, spec), tree)


def constrain_state(tree: PyTree) -> PyTree:
    """Keep the state of a fit replicated on all devices, and wide matrices sharded by their rows."""
    if (mesh := _mesh()) is None:
        return tree
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, _state_spec(leaf.shape, mesh)), tree)


def place_state(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Put the state of a fit on its devices, where `constrain_state` keeps it."""
    if mesh is None:
        return tree
    return jax.tree.map(lambda leaf: put(leaf, NamedSharding(mesh, _state_spec(leaf.shape, mesh))), tree)


def put(leaf: Array, sharding: NamedSharding) -> Array:
    """Put an array that is identical in all processes on devices that may belong to other processes."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = put(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(leaf))
    is_own = jax.process_count() > 1 and leaf.is_fully_addressable
    return jax.device_put(np.asarray(leaf) if is_own else leaf, sharding)


def place_rows(data: PyTree, mesh: Mesh | None) -> PyTree:
    """Put rows on the devices of a mesh, in equal-sized shards.

    Rows that cannot be divided evenly are replicated. With several processes each holds its own shard, and the data
    are all shards together.
    """
    if mesh is None:
        return data
    if jax.process_count() > 1:
        return _place_shards(data, mesh)
    divides = jax.tree.leaves(data)[0].shape[0] % mesh.size == 0
    spec = PartitionSpec(mesh.axis_names) if divides else PartitionSpec()
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), data)


def check_divides(num_devices: int, num_data: int, batch_size: int | None, num_replicates: int) -> None:
    """Refuse steps whose work cannot be divided evenly over the devices of a mesh.

    Args:
        num_devices: of the mesh.
        num_data: number of rows of all data.
        batch_size: rows per minibatch; `None` for all data.
        num_replicates: with minibatches of their own.
    """
    if (batch_size or num_data) % num_devices == 0:
        return
    if batch_size is not None and num_replicates % num_devices == 0:
        return
    if batch_size is None:
        raise ValueError(
            f"The number of data must be a multiple of the {num_devices} devices of `mesh`, got {num_data}; drop "
            f"{num_data % num_devices} rows, or use minibatches: "
            f"`sampler=quell.Sampler(10, {_multiple(100, num_devices)})`."
        )
    raise ValueError(
        f"`batch_size` or the number of replicates must be a multiple of the {num_devices} devices of `mesh`, got "
        f"{batch_size} and {num_replicates}; try `batch_size={_multiple(batch_size, num_devices)}`."
    )


def _mesh() -> AbstractMesh | None:
    """The active mesh; none within a program that is written for one of its devices."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if mesh.size > 1 and all(kind == AxisType.Auto for kind in mesh.axis_types) else None


def _multiple(number: int, divisor: int) -> int:
    return -(-number // divisor) * divisor


def _state_spec(shape: tuple[int, ...], mesh: Any) -> PartitionSpec:
    is_wide = jax.process_count() == 1 and len(shape) == 2 and shape[0] * shape[1] >= WIDE and shape[0] % mesh.size == 0
    return PartitionSpec(mesh.axis_names) if is_wide else PartitionSpec()


def _place_shards(data: PyTree, mesh: Mesh) -> PyTree:
    """Build global arrays from the rows of each process, after checking that the shards fit together."""
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(data)}
    rows = [np.ascontiguousarray(leaf) for leaf in named.values()]
    kind = ", ".join(f"{name} {leaf.dtype}{list(leaf.shape[1:])}" for name, leaf in zip(named, rows, strict=True))
    num_local = sum(device.process_index == jax.process_index() for device in mesh.devices.flat)
    _check_shards(kind, num_local, rows)
    sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(sharding, np.asarray(leaf)), data)


def _check_shards(kind: str, num_local: int, rows: list[np.ndarray]) -> None:
    """Refuse shards that differ in kind or size, that are all the same, or that the devices do not divide."""
    num_rows = rows[0].shape[0]
    own = np.asarray([_checksum([kind.encode()]), num_local, num_rows, _checksum(rows)], np.int32)
    kinds, devices, lengths, sums = gather(own).T.tolist()
    if len(set(kinds)) > 1:
        raise ValueError(
            f"Rows must have the same names, dtypes and shapes in all processes, got {kind} in process "
            f"{jax.process_index()}; convert them first, for example with `array.astype('float32')`."
        )
    if len(set(lengths)) > 1:
        raise ValueError(
            f"All processes must have the same number of rows, got {', '.join(map(str, lengths))}; keep "
            f"{min(lengths)} in each."
        )
    if len(set(devices)) > 1:
        raise ValueError(
            f"`mesh` must have the same number of devices in all processes, got {', '.join(map(str, devices))}."
        )
    if len(set(sums)) == 1:
        raise ValueError(
            f"Each process must have its own rows, got the same {num_rows} rows in all {len(sums)} processes; read "
            "another file in each, for example by `jax.process_index()`, or give `quell fit --data` a pattern of files."
        )
    if num_rows % num_local:
        raise ValueError(
            f"The number of rows per process must be a multiple of its {num_local} devices, got {num_rows}; drop "
            f"{num_rows % num_local} rows in each process."
        )


def _checksum(parts: list[Any]) -> int:
    """A number of 31 bits that depends on every byte."""
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found >> 1
