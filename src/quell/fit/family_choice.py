# SPDX-License-Identifier: Apache-2.0
"""The family of a fit that was given none."""

from collections.abc import Callable
from typing import Any, NamedTuple

from quell.families import AbstractFamily, FullRank, MeanField

LARGEST_FULL_RANK = 400
"""Coordinates up to which a full-rank Gaussian takes seconds: it has 80,000 parameters there, and a step some
factorisations of matrices of that size. It was sooner than low rank throughout, and nearer to the posterior."""

FamilyLike = AbstractFamily | Callable[[int], AbstractFamily] | None
"""A family, a function of the number of coordinates that makes one, such as `quell.MeanField`, or none."""


class ChosenFamily(NamedTuple):
    """A family, and why it was chosen; `None` where it was given."""

    family: AbstractFamily
    reason: str | None


def choose_family(given: FamilyLike, dim: int) -> ChosenFamily:
    """The family that was given, or full rank up to 400 coordinates and mean field beyond.

    Args:
        given: by the user.
        dim: number of coordinates of the latent.
    """
    if isinstance(given, AbstractFamily):
        return ChosenFamily(given, None)
    if given is not None:
        made: Any = given(dim) if callable(given) else None
        if not isinstance(made, AbstractFamily):
            raise TypeError(f"`family` must be a family or make one of a number, got {given!r}; try `quell.FullRank`.")
        return ChosenFamily(made, None)
    if dim <= LARGEST_FULL_RANK:
        return ChosenFamily(FullRank(dim), f"Full rank, for {dim:,} coordinates.")
    reason = f"Mean field, for {dim:,} coordinates: `linear_response` has standard deviations that see correlations."
    return ChosenFamily(MeanField(dim), reason)
