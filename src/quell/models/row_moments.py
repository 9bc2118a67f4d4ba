# SPDX-License-Identifier: Apache-2.0
"""Mean and covariance of the rows on disk, in two passes over them."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from quell.core.compilation import quick_jit
from quell.data import DiskRows
from quell.data.access import like_rows
from quell.models.row_sum import ROWS_AT_ONCE, sum_over_rows

_KEPT: dict[Any, "RowMoments"] = {}


class RowMoments(eqx.Module):
    """First two moments of a datum.

    Args:
        center: the mean datum.
        covariance: of the flattened datum.
    """

    center: PyTree[Float[Array, "..."]]
    covariance: Float[Array, "number number"]


def row_moments(data: DiskRows) -> RowMoments:
    """The moments of all rows; outside of compiled programs those of the same files are computed once."""
    if isinstance(jnp.zeros(()), Tracer):
        return _moments(data)
    key = (data.files, data.structure, data.prepare, jnp.result_type(float))
    if key not in _KEPT:
        _KEPT[key] = _compiled(data)
    return _KEPT[key]


def _moments(data: DiskRows) -> RowMoments:
    unravel = ravel_pytree(
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], _at_least_single(leaf.dtype)), like_rows(data, 1))
    )[1]

    def total(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, "number"]:
        return jnp.sum(_flat(rows), axis=0, where=counts[:, None])

    mean = sum_over_rows(total, data, at_once=ROWS_AT_ONCE) / data.num_rows

    def squares(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, "number number"]:
        steps = jnp.where(counts[:, None], _flat(rows) - mean, 0.0)
        return steps.T @ steps

    covariance = sum_over_rows(squares, data, at_once=ROWS_AT_ONCE) / data.num_rows
    return RowMoments(unravel(mean), covariance)


_compiled = quick_jit(_moments)


def _at_least_single(dtype: Any) -> Any:
    """Half precision has too few digits for sums."""
    return jnp.promote_types(dtype, jnp.float32)


def _flat(rows: PyTree) -> Float[Array, "datum number"]:
    flat = jax.vmap(lambda row: ravel_pytree(row)[0])(rows)
    return flat.astype(_at_least_single(flat.dtype))
