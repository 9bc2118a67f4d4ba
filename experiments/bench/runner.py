# SPDX-License-Identifier: Apache-2.0
"""Methods of the benchmark: programs that can be started, advanced and asked for their Gaussian."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Array, Float, Key

from experiments.bench.gaussian import Gaussian

Setting = Mapping[str, float | int]
"""A value for each axis of a runner."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """Values of one hyper-parameter in rising order, and which of them the program is compiled and timed with."""

    values: tuple[float | int, ...]
    first: int


class AbstractRunner(abc.ABC):
    """One compiled program; its settings are arguments, so that all of them share a compilation.

    Attributes:
        label: what is fixed in the program, such as the size of the minibatch.
        axes: what may be chosen, by name.
    """

    label: str
    axes: Mapping[str, Axis]

    @abc.abstractmethod
    def start(self, key: Key[Array, ""], mean: Float[Array, "latent"], setting: Setting) -> Any:
        """The state before the first step; off the clock."""

    @abc.abstractmethod
    def advance(self, state: Any, until: int) -> Any:
        """Take steps until their number is `until`; this alone is timed."""

    @abc.abstractmethod
    def gaussian(self, state: Any) -> Gaussian:
        """The current Gaussian; off the clock."""

    @property
    def warm_steps(self) -> int:
        """Steps to take before steps are timed: past one at which the run may switch to another program."""
        return 3

    def taken(self, state: Any, until: int) -> int:
        """Steps taken so far, where `advance` was asked for `until`: fewer where a fit has ended by itself."""
        return until

    def most_steps(self, setting: Setting) -> float | int:
        """Steps after which nothing changes any more: the end of the decay of the rate."""
        return setting.get("length", math.inf)

    def text(self, setting: Setting) -> str:
        """Label of a setting, for the table."""
        words = [self.label]
        if "rate" in setting:
            words.append(f"Adam {setting['rate']:g}")
        if "length" in setting:
            length = setting["length"]
            words.append("constant" if math.isinf(length) else f"cosine to {length:.0f}")
        if "scale" in setting:
            words.append(f"start {setting['scale']:g}")
        return ", ".join(word for word in words if word)


@dataclasses.dataclass(frozen=True)
class Method:
    """A name with one or more programs, of which the benchmark shows the best setting.

    Attributes:
        name: for the table; quell's own begin with `quell`.
        make: its runners, one for each structure: minibatch or all data, one sample or several. It is called when
            the method's turn comes.
        cold_seconds: of a whole run in a new process, by the names of the problem and of the folder of data; `None`
            where a run is compiled and then steps, so that these seconds are known.
    """

    name: str
    make: Callable[[], Sequence[AbstractRunner]]
    cold_seconds: Callable[[str, str | None], float] | None = None


ADAM: Mapping[str, Axis] = {
    "length": Axis((100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, math.inf), 6),
    "rate": Axis((0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3), 4),
    "scale": Axis((0.003, 0.01, 0.03, 0.1, 0.3, 1.0), 3),
}
"""Adam with a constant rate or cosine decay to zero, from Gaussians of several widths."""

ADAM_QUICK: Mapping[str, Axis] = {
    "length": Axis((200.0, 500.0, 1000.0), 2),
    "rate": Axis((0.03, 0.1), 0),
    "scale": Axis((0.1,), 0),
}
"""A grid for tests."""


def structure_label(batch_size: int | None, num_samples: int) -> str:
    """Rows and samples per step."""
    rows = "all rows" if batch_size is None else f"minibatch {batch_size}"
    return f"{rows}, {num_samples} sample{'s' * (num_samples > 1)}"
