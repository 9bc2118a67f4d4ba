# SPDX-License-Identifier: Apache-2.0
"""What discrete families share: values that can be listed, and a continuous relaxation of them.

Each of them makes its samples by a threshold on a continuous variable, logits plus noise. The concrete relaxation at
temperature t replaces the threshold by a smooth step of width t. It comes in two forms: as it is, and given the sample
that the threshold made, from noise of its own.
"""

import re
from abc import abstractmethod

import jax
from jaxtyping import Array, Float, PyTree

from quell.families.dense import AbstractDenseFamily

_RELAXED = re.compile(r"concrete\((?P<temperature>[^)]*)\)(?P<given>\|sample)?")


def relaxed_name(temperature: float, *, given_sample: bool = False) -> str:
    """Name of the map from noise to a relaxed latent."""
    return f"concrete({temperature!r}){'|sample' if given_sample else ''}"


class AbstractDiscreteFamily(AbstractDenseFamily):
    """A family over finitely many values; there is no path through its samples."""

    @property
    def transports(self) -> tuple[str, ...]:
        return ()

    @abstractmethod
    def support(self) -> Float[Array, "value latent"]:
        """All values, one a row."""

    @abstractmethod
    def hidden(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        """The continuous variable behind the sample."""

    @abstractmethod
    def hidden_given(
        self, params: PyTree, sample: Float[Array, "latent"], noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        """The continuous variable given the sample that it led to, from the second half of the noise."""

    @abstractmethod
    def hidden_log_prob(self, params: PyTree, hidden: Float[Array, "latent"]) -> Float[Array, ""]:
        """Log density of the continuous variable."""

    @abstractmethod
    def harden(self, hidden: Float[Array, "latent"]) -> Float[Array, "latent"]:
        """The threshold."""

    @abstractmethod
    def soften(self, hidden: Float[Array, "latent"], temperature: float) -> Float[Array, "latent"]:
        """The smooth step that takes the threshold's place."""

    def transport(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        relaxed = _RELAXED.fullmatch(name)
        if relaxed is None:
            return self.harden(self.hidden(params, noise))
        if relaxed["given"] is None:
            return self.soften(self.hidden(params, noise), float(relaxed["temperature"]))
        sample = self.harden(self.hidden(params, noise))
        return self.soften(self.hidden_given(params, sample, noise), float(relaxed["temperature"]))

    def log_density(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, ""]:
        if _RELAXED.fullmatch(name) is None:
            return super().log_density(name, params, noise)
        return self.hidden_log_prob(params, jax.lax.stop_gradient(self.hidden(params, noise)))
