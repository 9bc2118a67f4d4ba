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
    model, family, predictor = problem.model, problem.family, problem.predictor
    if predictor is None or not has_exact_elbo(problem):
        raise TypeError(
            f"`exact_elbo` needs a linear predictor, a normal prior and a Gaussian family, got {model} with "
            f"{type(family).__name__}; try `result.elbo()` for an estimate with its standard error."
        )
    mean = family.mean(params)

    @jax.checkpoint
    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, ""]:
        features = predictor.rows(rows)
        variance = family.predictor_variance(params, features)
        return jnp.sum(predictor.expected_log_likelihood(features @ mean, variance, rows), where=counts)

    data = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
    return data + elbo_without_data(problem, params)


def elbo_without_data(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """Expected log-prior and entropy, in closed form."""
    prior = problem.model.prior.quadratic(problem.family.mean(params))
    assert prior is not None, "asked where there is an exact ELBO"
    return problem.family.expected_quadratic(params, prior) + problem.family.entropy(params)
