# SPDX-License-Identifier: Apache-2.0
"""The recipe: the difference of two estimators of one term, approximated or not."""

import equinox as eqx
from jaxtyping import PyTree

from quell.approximations import AbstractApproximation, approximate, refuses_to_approximate
from quell.estimators import AbstractEstimator
from quell.evaluation import Evaluation, Problem
from quell.families import FactoredGradient
from quell.terms import AbstractTerm
from quell.variates.cost import largest_array, refuses_memory


class ControlVariate(eqx.Module):
    r"""A random gradient with mean zero: \(T - T'\), two estimators of one term.

    The term may be approximated first; the mean is zero however bad the approximation.

    Args:
        term: data, prior, variational or score.
        left: the first estimator.
        right: the second, which is subtracted.
        approximation: of the term; `None` takes it as it is.
        label: a name of your own; the recipe itself by default.

    Bias: none: the mean is zero.
    Cost: that of the two estimators; what they share within a step is computed once.

    Example:
        >>> import quell
        >>> quell.ControlVariate(quell.Prior(), quell.Reparameterization(), quell.ClosedForm())
        ControlVariate(prior: rp - cf)

    References: Geffner & Domke (2018), figure 2.
    """

    term: AbstractTerm
    left: AbstractEstimator
    right: AbstractEstimator
    approximation: AbstractApproximation | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """The label, or the recipe in words."""
        return self.label or self.formula

    @property
    def formula(self) -> str:
        """The recipe in words: `term: left - right`."""
        term = self.term.name
        inside = term if self.approximation is None else f"{self.approximation.name}({term})"
        return f"{inside}: {self.left.name} - {self.right.name}"

    def refuses(self, problem: Problem) -> str | None:
        """Why the recipe cannot be used for a problem; `None` if it can."""
        if self.left == self.right:
            return "both estimators are the same, so that the difference is zero"
        term = self.term
        if self.approximation is not None:
            reason = refuses_to_approximate(self.approximation, problem, term)
            if reason is not None:
                return reason
            term = shape_of_approximated(self.approximation, term, problem)
        return refuses_pair(problem, term, self.left, self.right) or refuses_memory(problem, self._run)

    def largest_array(self, problem: Problem) -> tuple[int, ...]:
        """Shape of the largest array that the recipe makes for one replicate on one datum, found without making it."""
        return largest_array(problem, self._run)

    def _run(self, evaluation: Evaluation) -> PyTree:
        """Everything that a step does with the recipe, but for learning."""
        state = self.init(evaluation.problem)
        after = state if self.learns else self.update(evaluation, state, None)
        return evaluation.algebra.pullback(self.sample(evaluation, state)), after

    def init(self, problem: Problem) -> PyTree:
        """The state of the approximation."""
        return None if self.approximation is None else self.approximation.init(problem)

    def sample(self, evaluation: Evaluation, state: PyTree) -> FactoredGradient:
        """One value per replicate."""
        term = self.term
        if self.approximation is not None:
            term = approximate(self.approximation, term, evaluation.problem, state)
        return self.left.estimate(evaluation, term) - self.right.estimate(evaluation, term)

    @property
    def learns(self) -> bool:
        """Whether the approximation is trained along with the fit."""
        return self.approximation is not None and self.approximation.learns

    def update(self, evaluation: Evaluation, state: PyTree, grad: PyTree) -> PyTree:
        """The state of the approximation for the next step."""
        return state if self.approximation is None else self.approximation.update(self.term, evaluation, state, grad)

    def __repr__(self) -> str:
        """The recipe in one line."""
        label = f"{self.label} = " if self.label else ""
        return f"ControlVariate({label}{self.formula})"


def refuses_pair(problem: Problem, term: AbstractTerm, left: AbstractEstimator, right: AbstractEstimator) -> str | None:
    """Why the difference of two estimators of a term is no variate; `None` if it is one."""
    if term.is_constant and not (left.has_score or right.has_score):
        return "its function is a constant, so that without a score both estimators are zero"
    return left.refuses(problem, term) or right.refuses(problem, term)


def shape_of_approximated(approximation: AbstractApproximation, term: AbstractTerm, problem: Problem) -> AbstractTerm:
    """The approximated term with shapes in place of arrays, which is enough to ask what it refuses."""
    return eqx.filter_eval_shape(_approximated, approximation, term, problem)


def _approximated(approximation: AbstractApproximation, term: AbstractTerm, problem: Problem) -> AbstractTerm:
    return approximate(approximation, term, problem, approximation.init(problem))
