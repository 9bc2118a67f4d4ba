# SPDX-License-Identifier: Apache-2.0
"""Maps from base noise to latents, as values."""

import dataclasses


class AbstractTransport:
    """A map from base noise to a latent. It is a key: the family knows how to apply it.

    Attributes:
        name: one word, for tables and for the names of variates.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class Transport(AbstractTransport):
    """A map that is told by its name alone.

    Args:
        name: unique within a family.
    """

    name: str


@dataclasses.dataclass(frozen=True)
class Relaxation(AbstractTransport):
    """A discrete family's map with its threshold replaced by a smooth step.

    Args:
        temperature: the width of the step.
        conditional: relax given the sample that the threshold made, from noise of its own.
    """

    temperature: float
    conditional: bool = False

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Temperature and kind."""
        return f"concrete({self.temperature!r}){'|sample' if self.conditional else ''}"


SAMPLE = Transport("sample")
r"""The map that a family samples with, where it has no other name."""

DIAGONAL = Transport("diagonal")
r"""\(z = \mu + \sigma \odot \epsilon\)."""

CHOLESKY = Transport("cholesky")
r"""\(z = \mu + L\epsilon\), the paper's RP1."""

SYMMETRIC = Transport("symmetric")
r"""\(z = \mu + (LL^\top)^{1/2}\epsilon\), the paper's RP2."""

MIRRORED = Transport("mirrored")
r"""The default map with the noise turned round, \(z = \mu - L\epsilon\)."""

DENSITY = Transport("density")
r"""Not to a latent but to the log density of the sample, \(\log q_w(T_w(\epsilon))\), of a flow."""

MIRRORED_DENSITY = Transport("mirrored density")
r"""The same of the sample that `MIRRORED` makes."""
