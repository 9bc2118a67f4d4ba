# SPDX-License-Identifier: Apache-2.0
"""What the page about a fit shows."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from quell.diagnostics.advice import Advice
from quell.diagnostics.contribution import Contributions
from quell.diagnostics.estimate import Estimate
from quell.diagnostics.khat import Khat
from quell.diagnostics.noise import GradientVariance
from quell.diagnostics.summary import Summary


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure on both grounds, as addresses that hold it.

    Attributes:
        title: of the figure, for those who cannot see it.
        light: on a light ground.
        dark: on a dark ground.
    """

    title: str
    light: str
    dark: str


@runtime_checkable
class Chosen(Protocol):
    """What was chosen automatically: the fields of a `Choice`."""

    @property
    def exact(self) -> bool:
        """Whether the gradient has no noise."""
        ...

    @property
    def reason(self) -> str:
        """In words."""
        ...


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a page about a fit shows; text may hold anything, it is shown as it is.

    Attributes:
        model: in one line.
        family: in one line.
        status: in a word.
        steps: how many, in what time.
        elbo: over all data.
        khat: with its advice.
        variance: of the gradient where the fit ended.
        contributions: of the variates.
        advice: the most urgent first.
        pictures: in order.
        summary: of the posterior.
        settings: by name.
        choice: that was made automatically, if one was.
    """

    model: str
    family: str
    status: str
    steps: str
    elbo: Estimate
    khat: Khat
    variance: GradientVariance
    contributions: Contributions
    advice: Sequence[Advice]
    pictures: Sequence[Picture]
    summary: Summary
    settings: Mapping[str, str]
    choice: Chosen | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the gradient has no noise."""
        return self.choice is not None and self.choice.exact
