# SPDX-License-Identifier: Apache-2.0
"""The paper's seven variates and its subsets of them, each one expression of the recipe."""

from collections.abc import Iterable

from quell.approximations import TaylorInData, TaylorInLatent
from quell.checks import check_name
from quell.estimators import ClosedForm, Reparameterization
from quell.terms import Data, Prior, Variational
from quell.variates import ControlVariate

RP1 = Reparameterization()
RP2 = Reparameterization("symmetric")
RP1_ALL = Reparameterization(full_data=True)
RP2_ALL = Reparameterization("symmetric", full_data=True)
CF = ClosedForm()

VARIATES = {
    "c1": ControlVariate(Variational(), RP1, CF, label="c1"),
    "c2": ControlVariate(Prior(), RP1, CF, label="c2"),
    "c3": ControlVariate(Prior(), RP1, RP2, label="c3"),
    "c4": ControlVariate(Data(), RP1, RP2, label="c4"),
    "c5": ControlVariate(Data(), RP1, RP1_ALL, approximation=TaylorInData(), label="c5"),
    "c6": ControlVariate(Data(), RP2, RP2_ALL, approximation=TaylorInData(), label="c6"),
    "c7": ControlVariate(Data(), RP1, CF, approximation=TaylorInLatent(), label="c7"),
}
"""The paper's seven variates by name (section 5)."""

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
        check_name("ensemble", names, [*SUBSETS, *VARIATES])
        names = SUBSETS.get(names, (names,))
    chosen = tuple(names)
    for name in chosen:
        check_name("variate", name, VARIATES)
    return tuple(VARIATES[name] for name in chosen)
