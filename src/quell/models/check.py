# SPDX-License-Identifier: Apache-2.0
"""A sequence of checks that explains what is wrong with a model before a fit does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from quell.data.access import first_rows, like_rows, most_rows, pick_rows, row_blocks
from quell.models.base import AbstractModel
from quell.models.row_difference import RowDifference, difference_in_batch, halves

_NUM_ROWS = 3


class ModelError(ValueError):
    """A model that cannot be fitted, with the reason and the way out."""


def check_model(model: AbstractModel) -> list[str]:
    """Run a sequence of checks and explain the first failure.

    A batch can be evaluated; it gives one value per datum; the value of a datum does not depend on its neighbours;
    likelihood and prior are finite; so are their gradients; dtypes agree. The latent is probed at zero and at two fixed
    points near it.

    Args:
        model: any quell model.

    Returns:
        The checks that passed, in words.

    Raises:
        ModelError: at the first check that fails.

    Example:
        >>> import quell
        >>> quell.check_model(quell.logistic_regression([[1.0], [2.0]], [0, 1]))[0]
        'the log-likelihood of a batch can be evaluated'
    """
    checks: dict[str, Callable[[AbstractModel], str | None]] = {
        "the log-likelihood of a batch can be evaluated": _evaluates,
        "it gives one value per datum": _shape,
        "the value of a datum does not depend on the other data of the batch": _independent,
        "the log-prior gives one number": _prior_shape,
        "log-likelihood and log-prior are finite": _finite,
        "their gradients are finite": _finite_gradients,
        "their dtypes are those of the latent": _dtypes,
    }
    for what, check in checks.items():
        reason = check(model)
        if reason is not None:
            raise ModelError(f"Model check failed: {what}? {reason}")
    return list(checks)


def check_likelihood_shape(model: AbstractModel) -> None:
    """Refuse a log-likelihood that does not give one value per datum; nothing is computed.

    Raises:
        ModelError: with the shape that was found.
    """
    batch = like_rows(model.data, _NUM_ROWS)
    shape = jax.eval_shape(model.log_likelihood, jax.eval_shape(lambda: jnp.zeros(model.dim)), batch).shape
    reason = _shape_reason(shape, jax.tree.leaves(batch)[0].shape[0])
    if reason is not None:
        raise ModelError(reason)


def check_rows(model: AbstractModel) -> None:
    """Refuse a log-likelihood whose rows have other values among six random rows than among three of these.

    Nothing is checked where rows are known to be independent, where arrays are traced or held by other processes, and
    where the model raises.

    Raises:
        ModelError: with both values.

    Cost: two small programs, of three and of six rows.
    """
    num = min(2 * _NUM_ROWS, most_rows(model.data))
    if model.has_independent_rows or num == 1 or not all(map(_is_here, [*jax.tree.leaves(model), jnp.zeros(())])):
        return
    index = np.random.default_rng(1).choice(model.num_data, num, replace=False)
    try:
        found = difference_in_batch(model, pick_rows(model.data, index), halves(num))
    except Exception:  # the likelihood's own checks, or a shape that suits whole batches only: nothing is known
        return
    if found is not None:
        raise ModelError(_dependent_reason(found))


def _is_here(leaf: Any) -> bool:
    return not isinstance(leaf, Tracer) and getattr(leaf, "is_fully_addressable", True)


def _rows(model: AbstractModel, num: int = _NUM_ROWS) -> Any:
    return first_rows(model.data, min(num, most_rows(model.data)))


def _points(model: AbstractModel) -> Array:
    steps = 0.1 * jnp.cos(jnp.arange(2.0 * model.dim)).reshape(2, model.dim)
    return jnp.concatenate([jnp.zeros((1, model.dim)), steps])


def _raised(error: Exception, what: str) -> str:
    return f"It must be a function of {what} in JAX operations, got {type(error).__name__}: {error}."


def _evaluates(model: AbstractModel) -> str | None:
    try:
        jax.eval_shape(model.log_likelihood, _points(model)[0], _rows(model))
    except Exception as error:
        return _raised(error, "(latent, batch)") + " Call it by hand on `jax.tree.map(lambda x: x[:3], data)`."
    return None


def _shape(model: AbstractModel) -> str | None:
    """Together and alone: a `squeeze` shows only on a batch of one."""
    for batch in (_rows(model), _rows(model, 1)):
        num = jax.tree.leaves(batch)[0].shape[0]
        reason = _shape_reason(jnp.shape(model.log_likelihood(_points(model)[0], batch)), num)
        if reason is not None:
            return reason
    return None


def _shape_reason(shape: tuple[int, ...], num: int) -> str | None:
    if shape == (num,):
        return None
    hint = "drop the final `.sum()` or `.squeeze()`" if shape == () else "sum over the other axes and keep the first"
    return f"The log-likelihood of {num} data must have shape ({num},), one value per datum, got {shape}; {hint}."


def _independent(model: AbstractModel) -> str | None:
    batch = _rows(model)
    num = jax.tree.leaves(batch)[0].shape[0]
    found = difference_in_batch(model, batch, [np.array([row]) for row in range(num)])
    return None if found is None else _dependent_reason(found)


def _dependent_reason(found: RowDifference) -> str:
    return (
        f"The log-likelihood of a datum must not depend on the rest of its batch, got {found.among} among other rows "
        f"and {found.alone} alone; return one value per row, and compute a mean, a sum or a maximum over all rows "
        "before, as an entry of `data`."
    )


def _prior_shape(model: AbstractModel) -> str | None:
    try:
        shape = jax.eval_shape(model.prior.log_prob, _points(model)[0]).shape
    except Exception as error:
        return _raised(error, "the latent")
    return None if shape == () else f"The log-prior must be a scalar, got shape {shape}; add a `.sum()`."


def _finite(model: AbstractModel) -> str | None:
    for z in _points(model):
        for start, rows in row_blocks(model.data, model.num_data):
            value = model.log_likelihood(z, rows)
            if not bool(jnp.all(jnp.isfinite(value))):
                row = int(jnp.argmin(jnp.isfinite(value)))
                return (
                    f"The log-likelihood must be finite near zero, got {value[row]} for datum {start + row} at latent "
                    f"{z}; check that datum, or clip inside the likelihood."
                )
        log_prior = model.prior.log_prob(z)
        if not bool(jnp.isfinite(log_prior)):
            return (
                f"The log-prior must be finite near zero, got {log_prior} at latent {z}; map the latent to the whole "
                "real line first."
            )
    return None


def _finite_gradients(model: AbstractModel) -> str | None:
    def likelihood(z: Array, rows: Any) -> Array:
        return jnp.sum(model.log_likelihood(z, rows))

    for z in _points(model):
        grad = jax.grad(model.prior.log_prob)(z)
        for _, rows in row_blocks(model.data, model.num_data):
            grad = grad + jax.grad(likelihood)(z, rows)
        if not bool(jnp.all(jnp.isfinite(grad))):
            where = int(jnp.argmin(jnp.isfinite(grad)))
            return (
                f"The gradient must be finite near zero, got {grad[where]} in coordinate {where} at latent {z}; a "
                "`jnp.where` around a function with an infinite slope is the usual cause."
            )
    return None


def _dtypes(model: AbstractModel) -> str | None:
    z = _points(model)[0]
    found = [model.log_likelihood(z, _rows(model)).dtype, model.prior.log_prob(z).dtype]
    if found == [z.dtype, z.dtype]:
        return None
    return (
        f"Log-likelihood and log-prior must have the latent's dtype, {z.dtype}, got {found[0]} and {found[1]}; convert "
        f"constants and data with `.astype({z.dtype})`."
    )
