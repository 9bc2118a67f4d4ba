# SPDX-License-Identifier: Apache-2.0
"""A model and a family that fit together."""

import functools
import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from quell.core.program import returns_none
from quell.core.tiers import tiered_jit
from quell.data.access import on_disk
from quell.evaluation.expectation import Expectation
from quell.evaluation.rows import RowExpectation
from quell.families import AbstractFamily, Capability, FullRank, MeanField
from quell.models import AbstractModel, AbstractPredictor, check_likelihood_shape
from quell.models.row_sum import rows_for, sum_over_rows
from quell.structure import Structure


class Problem(eqx.Module):
    """A model, and the family that is to approximate its posterior.

    Args:
        model: what is known about p.
        family: what q may be.
        expectation: of the log density under a Gaussian, where the structure of the model shows it; see `exactly`.
        rows: of the log-likelihood of any data, likewise; see `row_by_row`.
    """

    model: AbstractModel
    family: AbstractFamily
    expectation: Expectation | None = None
    rows: RowExpectation | None = None

    def __check_init__(self) -> None:
        """Refuse what is no model or family, a family of another dimension, and a likelihood without rows."""
        for name, given, needed in (("model", self.model, AbstractModel), ("family", self.family, AbstractFamily)):
            if not isinstance(given, needed):
                example = "quell.Model(...)" if name == "model" else "quell.FullRank(model.dim)"
                raise TypeError(f"`{name}` must be a {name} of quell, got {type(given).__name__}; try `{example}`.")
        if self.model.dim != self.family.dim:
            raise ValueError(
                f"`family` must have the dimension of the latent, {self.model.dim}, got {self.family.dim}; "
                f"try `{type(self.family).__name__}(dim=model.dim)`."
            )
        if self.expectation is None and self.rows is None:  # else its structure was read, and it was checked before
            check_likelihood_shape(self.model)

    @property
    def predictor(self) -> AbstractPredictor | None:
        """The model's linear predictors where they are Gaussian under the family; `None` elsewhere."""
        is_gaussian = self.family.refuses(Capability.GAUSSIAN, Capability.MOMENTS) is None
        return self.model.predictor if is_gaussian else None


MOST_EVALUATIONS = 2**26
"""Of addends at nodes, for one value of an exact ELBO: about a second on two cores."""


def exactly(problem: Problem, level: int = 0) -> Problem:
    """The problem with the expectation of its log density, where its program shows that; else as it is.

    Every addend must see at most three linear functions of the latent, and few may see up to five. Data on disk are
    not read.

    Args:
        problem: model and family.
        level: how many nodes an addend takes that has no closed form; 0 for as many as a first fit should take.
    """
    structure = _structure(problem, lambda model: model.addends)
    if structure is None:
        return problem
    expectation = Expectation.of(structure, jnp.result_type(float), level, has_variance=_has_variance(problem.family))
    too_long = expectation.num_evaluations > MOST_EVALUATIONS
    return problem if too_long else Problem(problem.model, problem.family, expectation, problem.rows)


def row_by_row(problem: Problem) -> Problem:
    """The problem with the expected log-likelihood of any of its data, where the program of the model shows that.

    With it `quell.ClosedForm` of the data term has no noise but that of picking a minibatch, as with linear predictors.
    Data on disk are not read.

    Args:
        problem: model and family.
    """
    if problem.rows is not None or problem.predictor is not None:
        return problem
    structure = _structure(problem, lambda model: model.row_addends)
    if structure is None:
        return problem
    has_variance, num_data = _has_variance(problem.family), problem.model.num_data
    rows = RowExpectation.of(structure, num_data, jnp.result_type(float), has_variance=has_variance)
    return Problem(problem.model, problem.family, problem.expectation, rows)


def _structure(problem: Problem, read: Callable[[AbstractModel], Structure]) -> Structure | None:
    """Of a model under a Gaussian family, where all of it is understood."""
    needs = Capability.GAUSSIAN, Capability.MOMENTS, Capability.ENTROPY
    if on_disk(problem.model.data) or problem.family.refuses(*needs) is not None:
        return None
    try:
        structure = read(problem.model)
    except Exception as error:  # whatever a program holds that the reader was not made for, the fit can sample it
        warnings.warn(f"The structure of the model could not be read ({error!r}); the fit samples.", stacklevel=3)
        return None
    return structure if structure.is_whole else None


def _has_variance(family: AbstractFamily) -> bool:
    """Whether its covariance has a diagonal of its own."""
    return jax.eval_shape(lambda: family.gaussian(family.init())).variance is not None


def has_one_optimum(problem: Problem) -> bool:
    r"""Whether the ELBO is known to have one local optimum only, under a Gaussian family.

    The log density is concave, and the family is mean-field or full-rank: then the ELBO is concave in the mean and in
    the Cholesky factor of the covariance.

    Args:
        problem: model and family.

    References: Challis and Barber (2013), "Gaussian Kullback-Leibler approximate inference".
    """
    is_known = isinstance(problem.family, MeanField | FullRank) and _structure(problem, lambda model: model.addends)
    return bool(is_known) and problem.model.is_log_concave


def has_exact_elbo(problem: Problem) -> bool:
    """Whether `exact_elbo` can be asked: a Gaussian family, and a known expectation or linear predictors."""
    if problem.expectation is not None:
        return True
    model, has_entropy = problem.model, problem.family.refuses(Capability.ENTROPY) is None
    has_predictor = problem.predictor is not None and has_entropy
    return has_predictor and not returns_none(lambda: model.prior.quadratic(jnp.zeros(model.dim)))


def exact_elbo(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """The ELBO without sampling, under a Gaussian family, for linear predictors or the problem of an exact fit.

    With linear predictors and a normal prior each predictor is a one-dimensional Gaussian, so the data term is one
    quadrature per datum; prior and entropy have closed forms. For other models the structure of their addends gives the
    expectation, where a fit has found that.

    Args:
        problem: `result.problem` of an exact fit; or a model with linear predictors and a quadratic log-prior, and a
            Gaussian family.
        params: of the family.

    Returns:
        The ELBO in nats, over all data.
    """
    if not has_exact_elbo(problem):
        raise TypeError(
            f"`exact_elbo` needs a linear predictor, a normal prior and a Gaussian family, got {problem.model} with "
            f"{type(problem.family).__name__}; try `result.elbo()` for an estimate with its standard error."
        )
    is_part = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((problem, params)))
    return (_exact_elbo if is_part else tiered_jit(_exact_elbo))(problem, params)


def _exact_elbo(problem: Problem, params: PyTree) -> Float[Array, ""]:
    return functools.reduce(jnp.add, elbo_summands(problem, params))


def elbo_summands(problem: Problem, params: PyTree) -> list[Float[Array, ""]]:
    """What `exact_elbo` is the sum of: numbers that may be larger than that, and its rounding with them."""
    model = problem.model
    if problem.expectation is not None:
        return [*problem.expectation.summands(problem.family.gaussian(params)), problem.family.entropy(params)]

    def of_rows(rows: PyTree, counts: Bool[Array, "datum"]) -> Float[Array, ""]:
        return jnp.sum(expected_log_likelihoods(problem, params, rows), where=counts)

    data = sum_over_rows(of_rows, model.data, at_once=rows_for(model.dim))
    return [data, *_prior_and_entropy(problem, params)]


def expected_log_likelihoods(problem: Problem, params: PyTree, rows: PyTree) -> Float[Array, "datum"]:
    """Expected log-likelihood of each row under q, for a problem with an exact ELBO: one quadrature per datum."""
    family, predictor = problem.family, problem.predictor
    assert predictor is not None, "there is an exact ELBO"
    features = predictor.rows(rows)
    variance = family.predictor_variance(params, features)
    return predictor.expected_log_likelihood(features @ family.mean(params), variance, rows)


def expected_prior_and_entropy(problem: Problem, params: PyTree) -> Float[Array, ""]:
    """What does not depend on the data of an exact ELBO: the expected log-prior and the entropy."""
    return jnp.add(*_prior_and_entropy(problem, params))


def _prior_and_entropy(problem: Problem, params: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
    family = problem.family
    prior = problem.model.prior.quadratic(family.mean(params))
    assert prior is not None, "there is an exact ELBO"
    return family.expected_quadratic(params, prior), family.entropy(params)
