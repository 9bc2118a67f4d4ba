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
    model = problem.model
    if not has_exact_elbo(problem):
        raise TypeError(
            "An exact ELBO needs a linear predictor, a normal prior and a Gaussian family, got "
            f"{model} with {type(problem.family).__name__}; try `result.elbo(key)` for an estimate."
        )

    @jax.checkpoint
    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, ""]:
        return jnp.sum(expected_log_likelihoods(problem, params, rows), where=counts)

    data = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
    return data + expected_prior_and_entropy(problem, params)


def expected_log_likelihoods(problem: Problem, params: PyTree, rows: PyTree) -> Float[Array, "datum"]:
    """Expected log-likelihood of each row under q, for a problem with an exact ELBO: one quadrature per datum."""
    model, family = problem.model, problem.family
    assert isinstance(model, LinearPredictor), "there is an exact ELBO"
    variance = family.predictor_variance(params, rows.features)
    return model.expected_log_likelihood(rows.features @ family.mean(params), variance, rows)


def expected_prior_and_entropy(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """What does not depend on the data of an exact ELBO: the expected log-prior and the entropy."""
    family = problem.family
    prior = problem.model.prior.quadratic(family.mean(params))
    assert prior is not None, "there is an exact ELBO"
    return family.expected_quadratic(params, prior) + family.entropy(params)
