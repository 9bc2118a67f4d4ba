# SPDX-License-Identifier: Apache-2.0
"""Whether a term has second derivatives in the latent, asked without computing any."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.data.access import first_rows
from quell.evaluation import Problem
from quell.models import AbstractModel
from quell.terms.base import AbstractTerm
from quell.terms.data import Data
from quell.terms.hessian_product import hessian_products
from quell.terms.prior import Prior


def refuses_second_derivative(problem: Problem, term: AbstractTerm) -> str | None:
    """Why data or prior cannot be differentiated twice, forward over reverse; `None` if they can, and elsewhere."""
    product = {Data().name: _data_product, Prior().name: _prior_product}.get(term.name)
    if product is None:
        return None
    like = jax.eval_shape(lambda: jnp.zeros(problem.model.dim))
    try:
        eqx.filter_eval_shape(product, problem.model, like)
    except Exception as error:  # whatever JAX or the user's function raises
        reason = str(error).partition("\n")[0]
        return f"the {term.name} term cannot be differentiated twice in its latent ({type(error).__name__}: {reason})"
    return None


# Only ever traced, and compiled never: the cache of traces makes the second look free.


@eqx.filter_jit
def _data_product(model: AbstractModel, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
    rows = first_rows(model.data, 1)
    return _product(lambda latent: jnp.sum(model.log_likelihood(latent, rows)), z)


@eqx.filter_jit
def _prior_product(model: AbstractModel, z: Float[Array, "latent"]) -> Float[Array, "latent"]:
    return _product(model.prior.log_prob, z)


def _product(function: Callable[[Array], Array], z: Float[Array, "latent"]) -> Float[Array, "latent"]:
    return hessian_products(function, z, z[:, None])[:, 0]
