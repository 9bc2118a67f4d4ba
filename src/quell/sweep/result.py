# SPDX-License-Identifier: Apache-2.0
"""What a sweep returns: a row for each subset and learning rate."""

import csv
import dataclasses
import io
import json
import math
import os
from pathlib import Path
from typing import Any

from quell.core.atomic import write_atomically
from quell.core.version import VERSION
from quell.fit.status import DivergenceError
from quell.sweep.plots import draw_sweep
from quell.sweep.row import COLUMNS, SweepRow, plain


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """A table of many fits.

    `print(result)` shows it.

    Attributes:
        rows: one for each subset and learning rate, in the order asked for.
        steps: of each fit.
    """

    rows: tuple[SweepRow, ...]
    steps: int

    @property
    def best(self) -> SweepRow:
        """The row with the highest median."""
        best = max(self.rows, key=lambda row: row.median)
        if best.median == -math.inf:
            raise DivergenceError(
                f"In each of {len(self.rows)} rows at least half of the fits diverged, so that none is best; "
                f"try `learning_rates=({min(row.learning_rate for row in self.rows) / 10:.3g},)`."
            )
        return best

    def as_json(self) -> dict[str, Any]:
        """All rows with the ELBO of each seed, for JSON; `None` for what is not finite."""
        rows = [row.as_dict() | {"elbos": [plain(elbo) for elbo in row.elbos]} for row in self.rows]
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

    def plot(self, *, ground: str = "light") -> Any:
        """Draw the final ELBO against the learning rate: a line a subset for the median, a band from lowest to highest.

        Args:
            ground: `light` or `dark`.

        Returns:
            A figure of matplotlib.
        """
        return draw_sweep(self.rows, ground=ground)

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
