# SPDX-License-Identifier: Apache-2.0
"""The quadratic lower bound of the logistic likelihood."""

import jax.numpy as jnp
from jaxtyping import PyTree

from quell.approximations.base import AbstractApproximation
from quell.approximations.quadratic_term import AbstractQuadraticTerm
from quell.core.program import returns_none
from quell.evaluation import Batch, Evaluation, Problem, batch_factor
from quell.families import Capability
from quell.models.quadratic import FactoredCurvature, Quadratic
from quell.terms import AbstractTerm, Data


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
        predictor = problem.model.predictor
        if predictor is None or returns_none(lambda: predictor.quadratic_bound(jnp.zeros(1), jnp.ones(1))):
            return f"no quadratic bound of the likelihood of {problem.model} is known (logistic regression has one)"
        return problem.family.refuses(Capability.MOMENTS)

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
        problem, params = evaluation.problem, evaluation.params
        family, predictor = problem.family, problem.model.predictor
        assert predictor is not None, "refused before"
        rows, mean = predictor.rows(batch.rows), family.mean(params)
        bound = predictor.quadratic_bound(rows @ mean, family.predictor_variance(params, rows))
        assert bound is not None, "refused before"
        value, slope, curvature = bound
        quadratic = Quadratic(mean, jnp.sum(value), slope @ rows, FactoredCurvature(rows, curvature))
        return quadratic.scale(batch_factor(problem, batch))
