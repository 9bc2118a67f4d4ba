# SPDX-License-Identifier: Apache-2.0
"""Subsets of variates by name."""

from collections.abc import Iterable
from typing import Any

from quell.core.checks import check_name
from quell.evaluation import Problem, Sampler
from quell.gradient import default_variates
from quell.paper import SUBSETS, VARIATES, variates
from quell.variates import ControlVariate

BY_PROBLEM = "default"
"""The name of the cheap variates that suit a problem."""


def check_subset(name: str) -> None:
    """Refuse a name that is not known, or a sum with a part that is not a single variate."""
    parts = name.split("+")
    for part in parts:
        check_name("subset", part, [BY_PROBLEM, *SUBSETS, *VARIATES] if len(parts) == 1 else VARIATES)


def named_subsets(given: Any, problem: Problem, sampler: Sampler) -> dict[str, tuple[ControlVariate, ...]]:
    """Variates by the name of their subset, in the order given.

    Args:
        given: names, such as `none`, `S7`, `default` or `c1+c7`, and tuples of variates.
        problem: model and family, for `default`.
        sampler: for `default`.
    """
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else []
    if not listed:
        raise ValueError(
            f"`subsets` must be a list of at least one subset, got {given!r}; try `subsets=('none', 'S7', 'default')`."
        )
    found: dict[str, tuple[ControlVariate, ...]] = {}
    for subset in listed:
        name, members = _named(subset, problem, sampler)
        if name in found:
            raise ValueError(f"`subsets` must be distinct, got {name!r} twice.")
        found[name] = members
    return found


def _named(subset: Any, problem: Problem, sampler: Sampler) -> tuple[str, tuple[ControlVariate, ...]]:
    if isinstance(subset, str):
        check_subset(subset)
        if subset == BY_PROBLEM:
            return subset, default_variates(problem, sampler)
        return subset, variates(subset.split("+") if "+" in subset else subset)
    if isinstance(subset, Iterable):
        members = tuple(subset)
        if all(isinstance(member, ControlVariate) for member in members):
            return "+".join(member.name for member in members) or "none", members
    raise TypeError(
        f"`subsets` must be names or tuples of control variates, got {subset!r}; "
        "try `subsets=('S7', 'c1+c7', quell.default_variates(problem))`."
    )
