# SPDX-License-Identifier: Apache-2.0
"""The quadratic lower bound of the logistic likelihood."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from quell.approximations.base import AbstractApproximation
from quell.approximations.quadratic_term import AbstractQuadraticTerm
from quell.evaluation import Batch, Evaluation, Problem
from quell.models import LinearPredictor
from quell.models.linear import log_sigmoid
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.terms import AbstractTerm, Data, batch_factor


class JaakkolaJordan(AbstractApproximation):
    r"""Replace \(\log \sigma(t)\), with \(t = y\, x^\top z\), by a quadratic in \(t\) that lies below it.

    $$\log \sigma(\xi) + \tfrac12 (t - \xi) - \lambda(\xi) (t^2 - \xi^2), \qquad
    \lambda(\xi) = \tanh(\xi / 2) / (4 \xi)$$

    It touches the likelihood at \(t = \pm\xi\). Each datum has \(\xi^2 = E_{q_w} t^2\), which makes the expected
    bound as high as it can be. So it fits the likelihood over the width of \(q_w\), where a Taylor expansion fits
    it at one point; while \(q_w\) is narrow the two hardly differ.

    Bias: none in a variate.
    Cost: two moments of the predictor of each datum; the curvature has the rank of the minibatch and is never
    formed.

    Example:
        >>> import quell
        >>> quell.JaakkolaJordan().name
        'bound'

    References: Jaakkola & Jordan (2000); Bishop (2006), equations 10.149 and 10.150; Paisley et al. (2012);
    Geffner & Domke (2018), section 3.2.
    """

    @property
    def name(self) -> str:
        return "bound"

    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        if not isinstance(term, Data):
            return f"the bound is one of the data term, and the {term.name} term was given"
        model = problem.model
        if isinstance(model, LinearPredictor) and model.log_density is log_sigmoid:
            return None
        return f"the bound is one of a logistic likelihood, as `quell.logistic_regression` makes it, and not of {model}"

    def init(self, problem: Problem) -> PyTree:
        return None

    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        return Bounded()


class Bounded(AbstractQuadraticTerm):
    """The data term of a logistic regression with its likelihood replaced by the bound."""

    @property
    def name(self) -> str:
        return "bound(data)"

    def quadratic(self, evaluation: Evaluation, batch: Batch) -> Quadratic:
        family, params, rows = evaluation.problem.family, evaluation.params, batch.rows.features
        mean = family.mean(params)
        predictor = rows @ mean
        variance = jnp.sum(family.covariance_product(params, rows) * rows, axis=-1)
        touch = jnp.sqrt(predictor**2 + variance)
        slope = 0.5 - 2.0 * bound_rate(touch) * predictor
        curvature = FactoredCurvature(rows, -2.0 * bound_rate(touch))
        total = jnp.sum(lower_bound(predictor, touch))
        return Quadratic(mean, total, slope @ rows, curvature).scale(batch_factor(evaluation.problem, batch))


def lower_bound(predictor: Float[Array, "*datum"], touch: Float[Array, "*datum"]) -> Float[Array, "*datum"]:
    r"""The quadratic in the predictor that lies below \(\log\sigma\) and touches it at plus and minus `touch`."""
    constant = jax.nn.log_sigmoid(touch) - 0.5 * touch
    return constant + 0.5 * predictor - bound_rate(touch) * (predictor**2 - touch**2)


def bound_rate(touch: Float[Array, "*datum"]) -> Float[Array, "*datum"]:
    r"""\(\lambda(\xi) = \tanh(\xi/2) / (4\xi)\), and its limit \(1/8\) at zero."""
    is_zero = touch == 0
    safe = jnp.where(is_zero, 1.0, touch)
    return jnp.where(is_zero, 0.125, jnp.tanh(0.5 * safe) / (4.0 * safe))
