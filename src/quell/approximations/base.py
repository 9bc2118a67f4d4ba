# SPDX-License-Identifier: Apache-2.0
"""What turns a term into a term that is easier to estimate."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import PyTree

from quell.evaluation import Evaluation, Problem
from quell.terms import AbstractTerm, Total


class AbstractApproximation(eqx.Module):
    """Replaces the function inside a term.

    The difference of two estimators of the approximated term has mean zero however bad the approximation.
    State (cached moments, an expansion point, a network) is made by `init` and handed to `apply`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name."""

    @property
    def learns(self) -> bool:
        """Whether the state is trained by the gradient of the variance."""
        return False

    @property
    def by_parts(self) -> bool:
        """Whether a sum of terms is approximated part by part, where that can be done, or as a whole."""
        return True

    @abstractmethod
    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        """Why this term cannot be approximated so; `None` if it can."""

    @abstractmethod
    def init(self, problem: Problem) -> PyTree:
        """What `apply` needs and is worth keeping between steps."""

    @abstractmethod
    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        """The approximated term."""

    def update(self, term: AbstractTerm, evaluation: Evaluation, state: PyTree, grad: PyTree) -> PyTree:
        """The state for the next step, after a draw was seen.

        Args:
            term: that is approximated.
            evaluation: of the draw.
            state: that the draw was used with.
            grad: the gradient of the combined gradient's squared norm with respect to the state, where it `learns`.
        """
        return state


def approximate(
    approximation: AbstractApproximation, term: AbstractTerm, problem: Problem, state: PyTree
) -> AbstractTerm:
    """Apply an approximation; to a sum of terms, part by part where it can be."""
    if not (isinstance(term, Total) and approximation.by_parts):
        return approximation.apply(term, state)
    parts = [
        approximate(approximation, part, problem, state)
        if refuses_to_approximate(approximation, problem, part) is None
        else part
        for part in term.parts
    ]
    return Total(tuple(parts), term.signs, f"{approximation.name}({term.name})")


def refuses_to_approximate(approximation: AbstractApproximation, problem: Problem, term: AbstractTerm) -> str | None:
    """Why a term cannot be approximated; a sum can be if one of its parts can."""
    if not (isinstance(term, Total) and approximation.by_parts):
        return approximation.refuses(problem, term)
    reasons = [refuses_to_approximate(approximation, problem, part) for part in term.parts]
    return None if None in reasons else reasons[0]
