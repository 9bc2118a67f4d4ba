# SPDX-License-Identifier: Apache-2.0
"""Which of many recipes are affordable for a problem."""

from collections.abc import Callable
from typing import Any

from jaxtyping import PyTree

from quell.estimators import AbstractEstimator
from quell.evaluation import Evaluation, Problem
from quell.variates.estimator_pairs import estimate_of, key_of
from quell.variates.memory import refuses_memory
from quell.variates.recipe import ControlVariate


class Affordable:
    """As `ControlVariate.refuses` sees memory; but each approximation and each estimator is traced once.

    Args:
        problem: model and family.
    """

    def __init__(self, problem: Problem) -> None:
        """Nothing is traced yet."""
        self.problem = problem
        self.seen: dict[tuple[str, ...], str | None] = {}

    def refuses(self, variate: ControlVariate) -> str | None:
        """Why a recipe is not affordable; `None` if it is."""
        sides = {key_of(variate, estimator): estimator for estimator in (variate.left, variate.right)}
        term, approximation, _ = next(iter(sides))
        found = self._look((term, approximation), lambda at: _refreshed(variate, at))
        for key, estimator in sides.items():
            found = found or self._look(key, lambda at, one=estimator: _one_side(variate, one, at))
        return found

    def _look(self, key: tuple[str, ...], run: Callable[[Evaluation], Any]) -> str | None:
        if key not in self.seen:
            self.seen[key] = refuses_memory(self.problem, run)
        return self.seen[key]


def _refreshed(variate: ControlVariate, evaluation: Evaluation) -> PyTree:
    state = variate.init(evaluation.problem)
    return state if variate.learns else variate.update(evaluation, state, None)


def _one_side(variate: ControlVariate, estimator: AbstractEstimator, evaluation: Evaluation) -> PyTree:
    return evaluation.algebra.pullback(estimate_of(evaluation.problem, variate, estimator)(evaluation))
