# SPDX-License-Identifier: Apache-2.0
"""What was chosen automatically, and why."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx

from quell.combine.select import Option
from quell.fit.checkpoint_file import CheckpointError

SHOWN = 8
"""Rows of the table, beside the base gradient and all variates together."""


class Trial(NamedTuple):
    """One way to make the gradient, as it was judged.

    Args:
        what: the variates, and how many times the samples.
        noise: expected squared distance of the gradient from its mean.
        microseconds: of a step, measured.
        effort: predicted time to converge, in units of the base gradient's.
    """

    what: str
    noise: float
    microseconds: float
    effort: float


BaseName = Literal["exact", "second order", "sampled"]
"""A base gradient: without any noise, with Hessians at latents, or with gradients at latents."""


class Choice(eqx.Module):
    """The gradient that `variates="auto"` has chosen.

    Args:
        base: the gradient that variates are added to: `"exact"` on all data, of `"second order"` (`Price`), or
            `"sampled"` (`Reparameterization`, or what suits the family).
        active: which of the variates are used.
        samples: how many times the samples of the default are taken.
        reason: in words.
        trials: what it was compared with, best first.
        seconds: that the choice has taken, compilation included.
        first: the base gradient that the fit began with, which its optimiser was made for.
        anneals: whether the density turned out to be far from a Gaussian, so that the rate of the default optimiser
            falls over the fit instead of tuning itself: the noise of long steps finds one of the better optima.
    """

    base: BaseName
    active: tuple[bool, ...]
    samples: int
    reason: str
    trials: tuple[Trial, ...] = ()
    seconds: float = 0.0
    first: BaseName = "sampled"
    anneals: bool = False

    @property
    def exact(self) -> bool:
        """Whether the gradient has no noise."""
        return self.base == "exact"

    def is_same(self, other: "Choice") -> bool:
        """Whether both make the same gradient."""
        return (self.base, self.active, self.samples) == (other.base, other.active, other.samples)

    def spec(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON has it: enough to make the same gradient again."""
        chosen = {"base": self.base, "active": list(self.active), "samples": self.samples, "first": self.first}
        told = {"reason": self.reason, "trials": [list(trial) for trial in self.trials]}
        return chosen | told | {"anneals": self.anneals}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Choice":
        """As a checkpoint kept it."""
        if "anneals" not in spec:
            raise CheckpointError(
                "The checkpoint holds a choice as an earlier version wrote it. One of this version was needed. "
                "Give another path and start anew, or name the variates instead of `variates='auto'`."
            )
        trials = tuple(Trial(*trial) for trial in spec["trials"])
        chosen = spec["base"], tuple(spec["active"]), spec["samples"], spec["reason"]
        return cls(*chosen, trials, first=spec["first"], anneals=spec["anneals"])

    def __str__(self) -> str:
        """The reason, and a table of what was tried."""
        if not self.trials:
            return self.reason
        width = max(len(trial.what) for trial in self.trials)
        rows = [f"{'gradient':{width}}  {'noise':>9}  {'step, µs':>9}  {'time to converge':>16}"]
        rows += [f"{t.what:{width}}  {t.noise:9.3g}  {t.microseconds:9.0f}  {t.effort:15.2f}x" for t in self.trials]
        return "\n".join([self.reason, *rows])


class Way(NamedTuple):
    """An option, and the base gradient that it is one for."""

    base: BaseName
    option: Option


def describe(names: Sequence[str], way: Way) -> str:
    """A way to make the gradient, in words."""
    base = "base" if way.base == "sampled" else f"{way.base} base"
    variates = " + ".join([base, *(names[k] for k in way.option.members)])
    return variates if way.option.samples == 1 else f"{variates}, {way.option.samples} times the samples"


def trials_of(names: Sequence[str], found: Sequence[Way]) -> tuple[Trial, ...]:
    """The best ways, the sampled base gradient alone, and all variates together, best first."""
    sampled = [way for way in found if way.base == "sampled"]
    base = next(way for way in sampled if not way.option.members and way.option.samples == 1)
    fullest = max(sampled, key=lambda way: (len(way.option.members), -way.option.samples))
    shown = dict.fromkeys([*found[:SHOWN], base, fullest])
    unit = base.option.effort
    return tuple(
        Trial(describe(names, way), way.option.noise, 1e6 * way.option.seconds, way.option.effort / unit)
        for way in sorted(shown, key=lambda way: way.option.effort)
    )
