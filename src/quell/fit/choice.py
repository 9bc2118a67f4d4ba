# SPDX-License-Identifier: Apache-2.0
"""The record of the gradient that a fit has chosen, and why."""

from typing import Literal

import equinox as eqx

BaseName = Literal["exact", "common draws", "sampled"]
"""A gradient: without noise, on draws that stay the same for many steps, or on draws of each step."""


class Choice(eqx.Module):
    """The gradient that `variates="auto"` has chosen.

    Args:
        base: the gradient that steps follow: `"exact"` on all data, on `"common draws"`, or `"sampled"`
            (`Reparameterization`, or what suits the family), which variates are added to.
        variates: names of the variates.
        reason: in words.

    Example:
        >>> import quell
        >>> print(quell.Choice("exact", (), "Every term has a closed form."))
        Every term has a closed form.
    """

    base: BaseName
    variates: tuple[str, ...]
    reason: str

    @property
    def exact(self) -> bool:
        """Whether the gradient has no noise."""
        return self.base == "exact"

    def __str__(self) -> str:
        """The reason."""
        return self.reason
