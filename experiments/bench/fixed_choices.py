# SPDX-License-Identifier: Apache-2.0
"""All fixed choices of a gradient for natural-gradient steps, to compare the automatic choice with."""

import dataclasses
import itertools
from collections.abc import Sequence

from quell.evaluation import Problem
from quell.fit import FitOptions
from quell.fit.defaults import default_optimizer, default_sampler
from quell.fit.method import EXACT, is_exact_for
from quell.gradient import candidate_variates, default_variates
from quell.variates import ControlVariate

MOST_FOR_SUBSETS = 4
"""With more candidates than this, not all subsets are tried."""

MULTIPLES = (2, 4)
"""How many times the default samples, for the sets that may be worth them."""

Variates = tuple[ControlVariate, ...]


def fixed_options(problem: Problem) -> list[FitOptions]:
    """One for each choice: the exact gradient, sets of variates, some with more samples."""
    sampler = default_sampler(problem, natural=True)
    candidates = candidate_variates(problem, sampler)
    sets = _unique([(), candidates, default_variates(problem, sampler), *_subsets(candidates)])
    found = [FitOptions(variates=one, sampler=sampler) for one in sets]
    for multiple in MULTIPLES:
        more = dataclasses.replace(sampler, num_replicates=multiple * sampler.num_replicates)
        found += [FitOptions(variates=one, sampler=more) for one in _unique([(), candidates])]
    if is_exact_for(problem):
        found.insert(0, FitOptions((), default_optimizer(problem, FitOptions().steps, exact=True), base=EXACT))
    return found


def base_options(problem: Problem) -> FitOptions:
    """The base gradient alone."""
    return FitOptions(variates=(), sampler=default_sampler(problem, natural=True))


def _subsets(candidates: Variates) -> list[Variates]:
    """All of them where they are few, else each variate alone."""
    most = len(candidates) if len(candidates) <= MOST_FOR_SUBSETS else 1
    return [one for size in range(1, most + 1) for one in itertools.combinations(candidates, size)]


def _unique(sets: Sequence[Variates]) -> list[Variates]:
    """Each set once, by the names of its members."""
    return list({frozenset(variate.name for variate in one): one for one in sets}.values())
