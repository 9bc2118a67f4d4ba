# SPDX-License-Identifier: Apache-2.0
"""What was chosen automatically, and why."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx

from quell.combine.select import Option

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


class Choice(eqx.Module):
    """The gradient that `variates="auto"` has chosen.

    Args:
        exact: whether it is the exact gradient on all data, without any noise.
        active: which of the variates are used.
        samples: how many times the samples of the default are taken.
        reason: in words.
        trials: what it was compared with, best first.
        seconds: that the choice has taken, compilation included.
    """

    exact: bool
    active: tuple[bool, ...]
    samples: int
    reason: str
    trials: tuple[Trial, ...] = ()
    seconds: float = 0.0

    def spec(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON has it: enough to make the same gradient again."""
        chosen = {"exact": self.exact, "active": list(self.active), "samples": self.samples}
        return chosen | {"reason": self.reason, "trials": [list(trial) for trial in self.trials]}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Choice":
        """As a checkpoint kept it."""
        trials = tuple(Trial(*trial) for trial in spec["trials"])
        return cls(spec["exact"], tuple(spec["active"]), spec["samples"], spec["reason"], trials)

    def __str__(self) -> str:
        """The reason, and a table of what was tried."""
        if not self.trials:
            return self.reason
        width = max(len(trial.what) for trial in self.trials)
        rows = [f"{'gradient':{width}}  {'noise':>9}  {'step, µs':>9}  {'time to converge':>16}"]
        rows += [f"{t.what:{width}}  {t.noise:9.3g}  {t.microseconds:9.0f}  {t.effort:15.2f}x" for t in self.trials]
        return "\n".join([self.reason, *rows])


def describe(names: Sequence[str], option: Option) -> str:
    """An option in words."""
    variates = " + ".join(["base", *(names[k] for k in option.members)])
    return variates if option.samples == 1 else f"{variates}, {option.samples} times the samples"


def trials_of(names: Sequence[str], found: Sequence[Option]) -> tuple[Trial, ...]:
    """The best options, the base gradient alone, and all variates together, best first."""
    base = next(option for option in found if not option.members and option.samples == 1)
    fullest = max(found, key=lambda option: (len(option.members), -option.samples))
    shown = [*found[:SHOWN], base, fullest]
    kept = [option for k, option in enumerate(shown) if option not in shown[:k]]
    ordered = sorted(kept, key=lambda option: option.effort)
    return tuple(
        Trial(describe(names, option), option.noise, 1e6 * option.seconds, option.effort / base.effort)
        for option in ordered
    )
