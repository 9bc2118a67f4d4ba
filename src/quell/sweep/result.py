# SPDX-License-Identifier: Apache-2.0
"""What a sweep returns: one row per subset and learning rate."""

import csv
import dataclasses
import io
import json
import math
import os
import statistics
from pathlib import Path
from typing import Any

from quell.core.atomic import write_atomically
from quell.core.version import VERSION
from quell.fit.status import DivergenceError

COLUMNS = ["subset", "learning_rate", "num_seeds", "num_diverged", "median", "lowest", "highest", "error", "seconds"]
"""Columns of the table, and entries of a row in the files."""


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
        return statistics.median(self.elbos)

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
        return {name: _plain(getattr(self, name)) for name in COLUMNS}


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """A table of many fits.

    `print(result)` shows it.

    Attributes:
        rows: one per subset and learning rate, in the order asked for.
        steps: of each fit.
    """

    rows: tuple[SweepRow, ...]
    steps: int

    @property
    def best(self) -> SweepRow:
        """The row with the highest median."""
        best = max(self.rows, key=lambda row: row.median)
        if best.median == -math.inf:
            smaller = min(row.learning_rate for row in self.rows) / 10
            raise DivergenceError(
                f"Half of the fits, or more, diverged in each of {len(self.rows)} rows, so that none is best; try "
                f"`learning_rates=({smaller:.3g},)`."
            )
        return best

    def as_json(self) -> dict[str, Any]:
        """All rows with the ELBO of each seed, for JSON; `None` for what is not finite."""
        rows = [row.as_dict() | {"elbos": [_plain(elbo) for elbo in row.elbos]} for row in self.rows]
        return {"quell": VERSION, "steps": self.steps, "rows": rows}

    def to_json(self, path: str | os.PathLike[str]) -> Path:
        """Write the rows, and the ELBO of each seed."""
        return _written(path, json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table, with an empty cell for what is not finite."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.as_dict() for row in self.rows)
        return _written(path, text.getvalue())

    def plot(self, *, theme: str = "light") -> Any:
        """Draw the final ELBO against the learning rate: per subset a line for the median and a band for the range.

        Args:
            theme: `light` or `dark`.

        Returns:
            A figure of matplotlib.
        """
        from quell.sweep.plots import draw_sweep

        return draw_sweep(self.rows, theme=theme)

    def __repr__(self) -> str:
        """A table."""
        width = max(6, *(len(row.subset) for row in self.rows))
        lines = [f"{'subset':<{width}}{'rate':>10}{'median':>12}{'lowest':>12}{'highest':>12}{'diverged':>10}{'s':>8}"]
        for row in self.rows:
            elbos = "".join(f"{value:>12.2f}" for value in (row.median, row.lowest, row.highest))
            lost = f"{row.num_diverged}/{row.num_seeds}"
            lines.append(f"{row.subset:<{width}}{row.learning_rate:>10.3g}{elbos}{lost:>10}{row.seconds:>8.1f}")
        return "\n".join(lines)


def _written(path: str | os.PathLike[str], text: str) -> Path:
    write_atomically(Path(path), lambda file: file.write(text.encode()))
    return Path(path)


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
