# SPDX-License-Identifier: Apache-2.0
"""A model and a family that fit together."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.families import AbstractFamily
from quell.models import AbstractModel, LinearPredictor, check_likelihood_shape
from quell.models.row_sum import rows_for, sum_over_rows


class Problem(eqx.Module):
    """A model, and the family that is to approximate its posterior.

    Args:
        model: what is known about p.
        family: what q may be.
    """

    model: AbstractModel
    family: AbstractFamily

    def __check_init__(self) -> None:
        """Refuse what is no model or family, a family of another dimension, and a likelihood of the wrong shape."""
        for name, given, needed in (("model", self.model, AbstractModel), ("family", self.family, AbstractFamily)):
            if not isinstance(given, needed):
                example = "quell.Model(...)" if name == "model" else "quell.FullRank(dim=model.dim)"
                raise TypeError(
                    f"`{name}` was given as {given!r}. A {name} of quell was needed. Write for example `{example}`."
                )
        if self.model.dim != self.family.dim:
            raise ValueError(
                f"A family over {self.family.dim} coordinates was given for a model whose latent has "
                f"{self.model.dim}. Equal numbers were needed. Write "
                f"`{type(self.family).__name__}(dim=model.dim)`."
            )
        check_likelihood_shape(self.model)


def has_exact_elbo(problem: Problem) -> bool:
    """Whether `exact_elbo` can be asked: a linear predictor, a quadratic log-prior and a Gaussian family."""
    model, family = problem.model, problem.family
    is_linear = isinstance(model, LinearPredictor) and family.is_gaussian
    return is_linear and model.prior.quadratic(jnp.zeros(model.dim)) is not None


def exact_elbo(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """The ELBO without sampling, for a linear predictor with a Gaussian family and a Gaussian prior.

    Under a Gaussian family each predictor is a one-dimensional Gaussian, so the data term is one
    quadrature a datum; prior and entropy have closed forms.

    Args:
        problem: a `LinearPredictor` with a quadratic log-prior, and a family with two moments.
        params: of the family.

    Returns:
        The ELBO in nats, over all data.
    """
    model, family = problem.model, problem.family
    mean = family.mean(params)
    prior = model.prior.quadratic(mean)
    if not isinstance(model, LinearPredictor) or prior is None or not has_exact_elbo(problem):
        raise TypeError(
            f"An exact ELBO was asked of {model} with {type(family).__name__}. A linear predictor with a normal prior "
            "and a Gaussian family was needed. "
            "Write `result.elbo(key)` for an estimate with its standard error, or build the model with "
            "`quell.logistic_regression` or one of its siblings."
        )

    @jax.checkpoint
    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, ""]:
        variance = family.predictor_variance(params, rows.features)
        values = model.expected_log_likelihood(rows.features @ mean, variance, rows)
        return jnp.sum(values, where=counts)

    data = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
    return data + family.expected_quadratic(params, prior) + family.entropy(params)
