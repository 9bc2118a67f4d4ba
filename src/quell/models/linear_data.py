# SPDX-License-Identifier: Apache-2.0
"""Features and targets of linear predictors, in memory or on disk, checked before a fit trusts them."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from quell.core.checks import check_finite
from quell.core.numbers import as_numbers, check_real
from quell.core.put import put
from quell.core.tiers import tiered_jit
from quell.data import DiskRows
from quell.data.access import check_disk_rows
from quell.data.disk_rows import join_rows

Check = Callable[[Any], None]


class LinearData(eqx.Module):
    """Rows of features with their targets."""

    features: Float[Array, "*batch datum latent"]
    targets: Float[Array, "*batch datum"]


def linear_data(features: ArrayLike | DiskRows, targets: ArrayLike | DiskRows) -> LinearData | DiskRows:
    """Features with real-valued targets."""
    if isinstance(features, DiskRows) or isinstance(targets, DiskRows):
        return _on_disk(features, targets, _as_linear, _finite_targets)
    return _in_memory(features, targets)


def counted_data(features: ArrayLike | DiskRows, counts: ArrayLike | DiskRows) -> LinearData | DiskRows:
    """Features with counts."""
    if isinstance(features, DiskRows) or isinstance(counts, DiskRows):
        return _on_disk(features, counts, _as_linear, _counts)
    _check_counts(counts)
    return _in_memory(features, counts)


def folded_data(features: ArrayLike | DiskRows, labels: ArrayLike | DiskRows) -> LinearData | DiskRows:
    """Features with the sign of their label folded in, and targets of one."""
    if isinstance(features, DiskRows) or isinstance(labels, DiskRows):
        return _on_disk(features, labels, _fold, _labels)
    values = _label_values(labels)
    _check_labels(set(np.unique(values).tolist()))
    data = _in_memory(features, np.ones_like(values))
    signs = put(np.where(values > 0, 1.0, -1.0), data.features.dtype)
    return LinearData(_signed(data.features, signs), data.targets)


@tiered_jit
def _signed(features: Array, signs: Array) -> Array:
    return signs[:, None] * features


def _in_memory(features: ArrayLike, targets: ArrayLike) -> LinearData:
    matrix = put(_real("features", features), jnp.result_type(float))
    vector = put(_real("targets", targets), matrix.dtype)
    _check_shapes(matrix.shape, vector.shape)
    check_finite("features", matrix)
    check_finite("targets", vector)
    return LinearData(matrix, vector)


def _real(name: str, given: ArrayLike) -> Array | np.ndarray:
    array = as_numbers(name, given)
    check_real(name, array)
    return array


def _on_disk(
    features: ArrayLike | DiskRows,
    targets: ArrayLike | DiskRows,
    finish: Callable[[Array, Array], LinearData],
    begin: Callable[[], Check],
) -> DiskRows:
    if not (isinstance(features, DiskRows) and isinstance(targets, DiskRows)):
        where = ("on disk", "in memory") if isinstance(features, DiskRows) else ("in memory", "on disk")
        raise TypeError(
            f"`features` and targets must both be on disk or both in memory, got features {where[0]} and targets "
            f"{where[1]}; write the others with `numpy.save` and give `quell.DiskRows(path)`."
        )
    _check_shapes(_array_shape("features", features), _array_shape("targets", targets))
    check_disk_rows(features, _finite_features)
    check_disk_rows(targets, begin)
    return join_rows(features, targets, finish)


def _array_shape(name: str, rows: DiskRows) -> tuple[int, ...]:
    like = rows.like(1)
    if len(jax.tree.leaves(like)) != 1 or not hasattr(like, "shape"):
        raise TypeError(f"`{name}` must be rows of one array, got {rows}; try `rows['{name}']` for a part of a dict.")
    return rows.num_rows, *like.shape[1:]


def _check_shapes(features: tuple[int, ...], targets: tuple[int, ...]) -> None:
    if len(features) != 2 or targets != features[:1] or 0 in features:
        raise ValueError(
            "`features` must have shape [num_data, num_features] and targets shape [num_data], not empty, got "
            f"{features} and {targets}."
        )


def _as_linear(features: Array, targets: Array) -> LinearData:
    dtype = jnp.result_type(float)
    return LinearData(features.astype(dtype), targets.astype(dtype))


def _fold(features: Array, labels: Array) -> LinearData:
    signs = jnp.where(labels > 0, 1, -1).astype(jnp.result_type(float))
    return LinearData(signs[..., None] * features.astype(signs.dtype), jnp.ones_like(signs))


# Rows on disk are checked once for each of these, which are therefore functions of the module.


def _finite_features() -> Check:
    return functools.partial(check_finite, "features")


def _finite_targets() -> Check:
    return functools.partial(check_finite, "targets")


def _counts() -> Check:
    return _check_counts


def _labels() -> Check:
    """Labels of all blocks together must be of one kind."""
    found: set[float] = set()

    def check(labels: ArrayLike) -> None:
        found.update(np.unique(_label_values(labels)).tolist())
        _check_labels(found)

    return check


def _check_counts(counts: ArrayLike) -> None:
    values = np.asarray(_real("counts", counts), dtype=float)
    check_finite("counts", values)
    bad = values[(values < 0) | (values != np.floor(values))]
    if bad.size:
        raise ValueError(f"`counts` must be non-negative integers, got {bad.flat[0]:g}; try `gaussian_regression`.")


def _label_values(labels: ArrayLike) -> np.ndarray:
    return np.asarray(_real("labels", labels), dtype=float)


def _check_labels(found: set[float]) -> None:
    if not (found <= {0.0, 1.0} or found <= {-1.0, 1.0}):
        shown = ", ".join(f"{v:g}" for v in sorted(found)[:5]) + (", ..." if len(found) > 5 else "")
        raise ValueError(f"`labels` must be in {{0, 1}} or in {{-1, 1}}, got {shown}; try `labels == labels.max()`.")
