# SPDX-License-Identifier: Apache-2.0
"""The record of the gradient that a fit has chosen, and why."""

from typing import Literal

import equinox as eqx

BaseName = Literal["exact", "second order", "sampled"]
"""A base gradient: without noise, with Hessians at latents, or with gradients at latents."""


class Choice(eqx.Module):
    """The gradient that `variates="auto"` has chosen.

    Args:
        base: the gradient that variates are added to: `"exact"` on all data, of `"second order"` (`BonnetPrice`), or
            `"sampled"` (`Reparameterization`, or what suits the family).
        variates: names of the variates that are added to it.
        reason: in words.
        anneals: whether the density turned out to be far from Gaussian, so that the rate of the default optimiser
            falls over the fit instead of tuning itself: the noise of long steps finds one of the better optima.

    Example:
        >>> import quell
        >>> print(quell.Choice("exact", (), "Every term has a closed form."))
        Every term has a closed form.
    """

    base: BaseName
    variates: tuple[str, ...]
    reason: str
    anneals: bool = False

    @property
    def first(self) -> BaseName:
        """The base gradient that the fit began with, which its default optimiser was made for."""
        return "second order" if self.anneals else self.base

    @property
    def exact(self) -> bool:
        """Whether the gradient has no noise."""
        return self.base == "exact"

    def __str__(self) -> str:
        """The reason."""
        return self.reason
