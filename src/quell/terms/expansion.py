# SPDX-License-Identifier: Apache-2.0
"""Expansions of averages over several latents, and whether a function can be expanded at all."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.core.checks import first_line
from quell.data.access import first_rows
from quell.models import AbstractModel
from quell.models.quadratic import AbstractCurvature, Quadratic, hessian_products


def average(
    function: Callable[[Array], Array], offsets: Float[Array, "point latent"]
) -> Callable[[Array], Float[Array, ""]]:
    r"""\(\bar f(z)\), the average of \(f(z + \delta_k)\) over the offsets: it has one Hessian only."""
    return lambda z: jnp.mean(jax.vmap(function)(z + offsets))


def expand_each(
    expand: Callable[[Array], Quadratic], anchor: Float[Array, "latent"], offsets: Float[Array, "point latent"]
) -> Quadratic:
    """The mean gradient and the mean curvature of expansions at several points, around the anchor.

    For functions whose expansion is cheaper than automatic differentiation of their average. The value is left zero.
    """

    def derivatives(offset: Array) -> tuple[Array, AbstractCurvature]:
        quadratic = expand(anchor + offset)
        return quadratic.grad(anchor + offset), quadratic.curvature

    slopes, curvatures = jax.vmap(derivatives)(offsets)
    return Quadratic(anchor, jnp.zeros((), anchor.dtype), jnp.mean(slopes, axis=0), curvatures.mean())


def refuses_second_derivative(model: AbstractModel, name: str) -> str | None:
    """Why log-likelihood or log-prior cannot be differentiated twice, forward over reverse; `None` if they can.

    Args:
        model: whose functions are traced; nothing is computed.
        name: `data` or `prior`.
    """
    product = {"data": _data_product, "prior": _prior_product}[name]
    try:
        eqx.filter_eval_shape(product, model, jax.eval_shape(lambda: jnp.zeros(model.dim)))
    except Exception as error:  # whatever JAX or the user's function raises
        what = f"{type(error).__name__}: {first_line(error)}"
        return f"the {name} term cannot be differentiated twice in its latent ({what})"
    return None


# Only ever traced, never compiled: the cache of traces makes the second check free.


@eqx.filter_jit
def _data_product(model: AbstractModel, z: Float[Array, "latent"]) -> Any:
    rows = first_rows(model.data, 1)
    return hessian_products(lambda latent: jnp.sum(model.log_likelihood(latent, rows)), z, z[:, None])


@eqx.filter_jit
def _prior_product(model: AbstractModel, z: Float[Array, "latent"]) -> Any:
    return hessian_products(model.prior.log_prob, z, z[:, None])
