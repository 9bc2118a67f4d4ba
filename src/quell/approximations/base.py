# SPDX-License-Identifier: Apache-2.0
"""What turns a term into a term that is easier to estimate."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import PyTree

from quell.problem import Problem
from quell.terms import AbstractTerm


class AbstractApproximation(eqx.Module):
    """Replaces the function inside a term.

    The difference of two estimators of the approximated term has mean zero however bad the approximation.
    State (cached moments, an expansion point, a network) is made by `init` and handed to `apply`.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name."""

    @abstractmethod
    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        """Why this term cannot be approximated so; `None` if it can."""

    @abstractmethod
    def init(self, problem: Problem) -> PyTree:
        """What `apply` needs and is worth keeping between steps."""

    @abstractmethod
    def apply(self, term: AbstractTerm, state: PyTree) -> AbstractTerm:
        """The approximated term."""
