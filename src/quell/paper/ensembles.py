# SPDX-License-Identifier: Apache-2.0
"""The paper's subsets of its seven variates."""

from collections.abc import Iterable

from quell.core.checks import check_name
from quell.variates import VARIATES, ControlVariate

SUBSETS = {
    "none": (),
    "S4": ("c2", "c1", "c3", "c4"),
    "S5": ("c2", "c1", "c3", "c4", "c6"),
    "S6": ("c2", "c1", "c3", "c4", "c6", "c5"),
    "S7": ("c2", "c1", "c3", "c4", "c6", "c5", "c7"),
}
"""The paper's growing subsets, the weakest variates first (section 5)."""


def variates(names: str | Iterable[str]) -> tuple[ControlVariate, ...]:
    """The paper's variates by name.

    Args:
        names: one of `none`, `S4`, `S5`, `S6`, `S7`, `c1` to `c7`, or several of `c1` to `c7`.

    Returns:
        The variates, in the order named.

    Example:
        >>> import quell
        >>> quell.paper.variates("c7")
        (ControlVariate(c7 = taylor-z(data): rp - cf),)
        >>> len(quell.paper.variates(["c1", "c5"]))
        2
    """
    if isinstance(names, str):
        check_name("The ensemble", names, [*SUBSETS, *VARIATES])
        names = SUBSETS.get(names, (names,))
    chosen = tuple(names)
    for name in chosen:
        check_name("The variate", name, VARIATES)
    return tuple(VARIATES[name] for name in chosen)
