# SPDX-License-Identifier: Apache-2.0
"""What turns a term into a random gradient."""

from abc import abstractmethod
from typing import Any

import equinox as eqx

from quell.evaluation import Evaluation, Problem
from quell.families import AbstractTransport, FactoredGradient
from quell.terms import AbstractTerm


class AbstractEstimator(eqx.Module):
    """A way to estimate a term from a draw.

    Law: the expectation over the draw is the term, exactly, for every term that is not refused.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name, for tables and for the names of variates."""

    @property
    def has_score(self) -> bool:
        """Whether a part of it is a score, which a constant function does not make zero."""
        return False

    @abstractmethod
    def refuses(self, problem: Problem, term: AbstractTerm) -> str | None:
        """Why this term cannot be estimated so; `None` if it can."""

    @abstractmethod
    def estimate(self, evaluation: Evaluation, term: AbstractTerm) -> FactoredGradient:
        """One gradient per replicate."""


def as_transport(given: Any) -> AbstractTransport | None:
    """Refuse what is not a transport."""
    if given is None or isinstance(given, AbstractTransport):
        return given
    raise TypeError(f"`transport` must be a transport, got {given!r}; try `quell.SYMMETRIC`.")


def refuses_transport(problem: Problem, term: AbstractTerm, transport: AbstractTransport | None) -> str | None:
    """Why a differentiable transport is not to be had; `None` if it is."""
    valid = term.transports(problem)
    if valid and (transport is None or transport in valid):
        return None
    family = type(problem.family).__name__
    if transport is None or not valid:
        return f"{family} has no differentiable transport, so that no path leads through its samples"
    return f"{family} has no transport {transport.name!r} (it has {', '.join(repr(one.name) for one in valid)})"


def default_transport(
    evaluation: Evaluation, term: AbstractTerm, transport: AbstractTransport | None
) -> AbstractTransport:
    """The named transport, or the one that the term is sampled with."""
    return transport or term.sampling(evaluation.problem)


def suffix(transport: AbstractTransport | None = None, *, full_data: bool) -> str:
    """What distinguishes estimators of one kind, in brackets."""
    words = [word for word in (transport and transport.name, "all" if full_data else None) if word]
    return f"[{','.join(words)}]" if words else ""
