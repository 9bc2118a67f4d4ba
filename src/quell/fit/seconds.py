# SPDX-License-Identifier: Apache-2.0
"""Where the time of a fit went."""

import equinox as eqx


class Seconds(eqx.Module):
    """Wall-clock seconds of a fit, by stage.

    Args:
        reading: the structure of the model, and the choice of a method.
        compiling: tracing and compiling the steps; none where NumPy runs them, or where an earlier fit has.
        fitting: all else, before an interruption too.

    Example:
        >>> print(Seconds(reading=0.25, compiling=1.0, fitting=0.5))
        1.75 s (reading 0.25, compiling 1.00, fitting 0.50)
    """

    reading: float
    compiling: float
    fitting: float

    @property
    def total(self) -> float:
        """Of all stages."""
        return self.reading + self.compiling + self.fitting

    def __add__(self, other: "Seconds") -> "Seconds":
        """Of two fits, one after the other."""
        return Seconds(self.reading + other.reading, self.compiling + other.compiling, self.fitting + other.fitting)

    def __str__(self) -> str:
        """The total, and its stages."""
        stages = f"reading {self.reading:.2f}, compiling {self.compiling:.2f}, fitting {self.fitting:.2f}"
        return f"{self.total:.2f} s ({stages})"
