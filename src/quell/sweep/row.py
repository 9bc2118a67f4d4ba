# SPDX-License-Identifier: Apache-2.0
"""One row of a sweep's table."""

import dataclasses
import math
from typing import Any

COLUMNS: tuple[str, ...] = (
    "subset",
    "learning_rate",
    "num_seeds",
    "num_diverged",
    "median",
    "lowest",
    "highest",
    "error",
    "seconds",
)
"""Of the table, and the entries of a row in the files."""


@dataclasses.dataclass(frozen=True)
class SweepRow:
    """The fits with one subset of variates at one learning rate.

    Attributes:
        subset: its name.
        learning_rate: of the optimiser.
        elbos: the ELBO in nats where each seed's fit ended; minus infinity where it diverged.
        num_diverged: how many seeds did.
        error: the largest standard error of these ELBOs; 0 where they are exact.
        seconds: of all fits of the subset together, which run side by side; compilation included.
    """

    subset: str
    learning_rate: float
    elbos: tuple[float, ...]
    num_diverged: int
    error: float
    seconds: float

    @property
    def num_seeds(self) -> int:
        """Number of fits."""
        return len(self.elbos)

    @property
    def median(self) -> float:
        """Of the ELBOs; minus infinity where half of the fits, or more, diverged."""
        ordered = sorted(self.elbos)
        return 0.5 * (ordered[(self.num_seeds - 1) // 2] + ordered[self.num_seeds // 2])

    @property
    def lowest(self) -> float:
        """Of the ELBOs; minus infinity where a fit diverged."""
        return min(self.elbos)

    @property
    def highest(self) -> float:
        """Of the ELBOs."""
        return max(self.elbos)

    def as_dict(self) -> dict[str, Any]:
        """The columns of the table by name; `None` for what is not finite."""
        return {name: plain(getattr(self, name)) for name in COLUMNS}


def plain(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
