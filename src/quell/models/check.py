# SPDX-License-Identifier: Apache-2.0
"""A ladder of checks that explains what is wrong with a model before a fit does."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from quell.data.access import first_rows, like_rows, most_rows, row_blocks
from quell.models.base import AbstractModel

_NUM_ROWS = 3


class ModelError(ValueError):
    """A model that cannot be fitted, with the reason and the way out."""


def check_model(model: AbstractModel) -> list[str]:
    """Walk up a ladder of checks and explain the first failure.

    The rungs: a batch can be evaluated; it gives one value a datum; the value of a datum does not
    depend on its neighbours; likelihood and prior are finite; so are their gradients; dtypes agree.
    The latent is probed at zero and at two fixed points near it.

    Args:
        model: any quell model.

    Returns:
        The rungs that passed, in words.

    Raises:
        ModelError: at the first rung that fails.

    Example:
        >>> import quell
        >>> quell.check_model(quell.logistic_regression([[1.0], [2.0]], [0, 1]))[0]
        'the log-likelihood of a batch can be evaluated'
    """
    ladder: list[tuple[str, Callable[[AbstractModel], str | None]]] = [
        ("the log-likelihood of a batch can be evaluated", _evaluates),
        ("it gives one value a datum", _shape),
        ("the value of a datum does not depend on the other data of the batch", _independent),
        ("the log-prior gives one number", _prior_shape),
        ("log-likelihood and log-prior are finite", _finite),
        ("their gradients are finite", _finite_gradients),
        ("their dtypes are those of the latent", _dtypes),
    ]
    for rung, check in ladder:
        reason = check(model)
        if reason is not None:
            raise ModelError(f"Model check failed: {rung}? {reason}")
    return [rung for rung, _ in ladder]


def check_likelihood_shape(model: AbstractModel) -> None:
    """Refuse a log-likelihood that does not give one value a datum; nothing is computed.

    Raises:
        ModelError: with the shape that was found.
    """
    like = jax.eval_shape(lambda: jnp.zeros(model.dim))
    batch = like_rows(model.data, _NUM_ROWS)
    shape = jax.eval_shape(model.log_likelihood, like, batch).shape
    reason = _shape_reason(shape, jax.tree.leaves(batch)[0].shape[0])
    if reason is not None:
        raise ModelError(reason)


def _rows(model: AbstractModel) -> Any:
    return first_rows(model.data, _num_rows(model))


def _num_rows(model: AbstractModel) -> int:
    return min(_NUM_ROWS, most_rows(model.data))


def _points(model: AbstractModel) -> Array:
    steps = 0.1 * jnp.cos(jnp.arange(2.0 * model.dim)).reshape(2, model.dim)
    return jnp.concatenate([jnp.zeros((1, model.dim)), steps])


def _evaluates(model: AbstractModel) -> str | None:
    try:
        jax.eval_shape(model.log_likelihood, _points(model)[0], _rows(model))
    except Exception as error:
        return (
            f"It raised {type(error).__name__}: {error}. A function of (latent, batch) in JAX operations "
            "was needed. Call it by hand on `jax.tree.map(lambda x: x[:3], data)` to see where it stops."
        )
    return None


def _shape(model: AbstractModel) -> str | None:
    """Together and alone: a `squeeze` shows only on a batch of one."""
    for num in (_num_rows(model), 1):
        batch = first_rows(model.data, num)
        reason = _shape_reason(jnp.shape(model.log_likelihood(_points(model)[0], batch)), num)
        if reason is not None:
            return reason
    return None


def _shape_reason(shape: tuple[int, ...], num: int) -> str | None:
    if shape == (num,):
        return None
    hint = "Drop the final `.sum()` or `.squeeze()`." if shape == () else "Sum over the other axes and keep the first."
    return f"A batch of {num} data gave shape {shape}. Shape ({num},) was needed, one value a datum. {hint}"


def _independent(model: AbstractModel) -> str | None:
    z, batch = _points(model)[1], _rows(model)
    together = model.log_likelihood(z, batch)
    alone = jnp.concatenate(
        [model.log_likelihood(z, jax.tree.map(lambda x, i=i: x[i : i + 1], batch)) for i in range(together.shape[0])]
    )
    if bool(jnp.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True)):
        return None
    return (
        f"Evaluated together {together.shape[0]} data gave {together}, evaluated alone {alone}. Values that do not see "
        "the rest of the batch were needed. Look for a mean, a sum or a normalisation over the first axis."
    )


def _prior_shape(model: AbstractModel) -> str | None:
    try:
        shape = jax.eval_shape(model.prior.log_prob, _points(model)[0]).shape
    except Exception as error:
        return (
            f"It raised {type(error).__name__}: {error}. A function of the latent in JAX operations was needed. "
            "Call it by hand on the example of the latent to see where it stops."
        )
    if shape == ():
        return None
    return f"The log-prior gave shape {shape}. A scalar was needed. Add a `.sum()`."


def _finite(model: AbstractModel) -> str | None:
    for z in _points(model):
        for start, rows in row_blocks(model.data, model.num_data):
            value = model.log_likelihood(z, rows)
            if not bool(jnp.all(jnp.isfinite(value))):
                row = int(jnp.argmin(jnp.isfinite(value)))
                return (
                    f"The log-likelihood of datum {start + row} is {value[row]} at latent {z}. A finite value was "
                    "needed near zero. Look at that datum, or clip inside the likelihood."
                )
        if not bool(jnp.isfinite(model.prior.log_prob(z))):
            return (
                f"The log-prior is {model.prior.log_prob(z)} at latent {z}. A density that is positive "
                "near zero was needed. Map the latent to the whole real line first."
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
                f"The gradient's coordinate {where} is {grad[where]} at latent {z}. A finite gradient was "
                "needed. A `jnp.where` around a function with an infinite slope is the usual cause."
            )
    return None


def _dtypes(model: AbstractModel) -> str | None:
    z = _points(model)[0]
    found = (model.log_likelihood(z, _rows(model)).dtype, model.prior.log_prob(z).dtype)
    if all(dtype == z.dtype for dtype in found):
        return None
    return (
        f"Log-likelihood and log-prior have dtypes {found[0]} and {found[1]}. {z.dtype} was needed. "
        f"Write `data.astype({z.dtype})`."
    )
