# SPDX-License-Identifier: Apache-2.0
"""A model and a family that fit together."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from quell.families import AbstractFamily, Capability
from quell.models import AbstractModel, AbstractPredictor, check_likelihood_shape
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
                example = "quell.Model(...)" if name == "model" else "quell.FullRank(model.dim)"
                raise TypeError(f"`{name}` must be a {name} of quell, got {type(given).__name__}; try `{example}`.")
        if self.model.dim != self.family.dim:
            raise ValueError(
                f"`family` must have the dimension of the latent, {self.model.dim}, got {self.family.dim}; "
                f"try `{type(self.family).__name__}(dim=model.dim)`."
            )
        check_likelihood_shape(self.model)

    @property
    def predictor(self) -> AbstractPredictor | None:
        """The model's linear predictors where they are Gaussian under the family; `None` elsewhere."""
        is_gaussian = self.family.refuses(Capability.GAUSSIAN, Capability.MOMENTS) is None
        return self.model.predictor if is_gaussian else None


def has_exact_elbo(problem: Problem) -> bool:
    """Whether `exact_elbo` can be asked: linear predictors, a quadratic log-prior and a Gaussian family."""
    quadratic = problem.model.prior.quadratic(jnp.zeros(problem.model.dim))
    has_entropy = problem.family.refuses(Capability.ENTROPY) is None
    return problem.predictor is not None and quadratic is not None and has_entropy


def exact_elbo(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """The ELBO without sampling, for linear predictors with a Gaussian family and a Gaussian prior.

    Under a Gaussian family each predictor is a one-dimensional Gaussian, so the data term is one
    quadrature per datum; prior and entropy have closed forms.

    Args:
        problem: a model with linear predictors and a quadratic log-prior, and a Gaussian family.
        params: of the family.

    Returns:
        The ELBO in nats, over all data.
    """
    model = problem.model
    if not has_exact_elbo(problem):
        raise TypeError(
            f"`exact_elbo` needs a linear predictor, a normal prior and a Gaussian family, got {model} with "
            f"{type(problem.family).__name__}; try `result.elbo()` for an estimate with its standard error."
        )

    @jax.checkpoint
    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, ""]:
        return jnp.sum(expected_log_likelihoods(problem, params, rows), where=counts)

    data = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
    return data + expected_prior_and_entropy(problem, params)


def expected_log_likelihoods(problem: Problem, params: PyTree, rows: PyTree) -> Float[Array, "datum"]:
    """Expected log-likelihood of each row under q, for a problem with an exact ELBO: one quadrature per datum."""
    family, predictor = problem.family, problem.predictor
    assert predictor is not None, "there is an exact ELBO"
    features = predictor.rows(rows)
    variance = family.predictor_variance(params, features)
    return predictor.expected_log_likelihood(features @ family.mean(params), variance, rows)


def expected_prior_and_entropy(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """What does not depend on the data of an exact ELBO: the expected log-prior and the entropy."""
    family = problem.family
    prior = problem.model.prior.quadratic(family.mean(params))
    assert prior is not None, "there is an exact ELBO"
    return family.expected_quadratic(params, prior) + family.entropy(params)
