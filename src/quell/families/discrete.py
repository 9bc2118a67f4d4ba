# SPDX-License-Identifier: Apache-2.0
"""What discrete families share: values that can be listed, and a continuous relaxation of them.

Each of them makes its samples by a threshold on a continuous variable, logits plus noise. The concrete relaxation at
temperature t replaces the threshold by a smooth step of width t. It comes in two forms: as it is, and given the sample
that the threshold made, from noise of its own.
"""

from abc import abstractmethod

import jax
from jaxtyping import Array, Float, PyTree

from quell.families.base import AbstractFamily, Capability
from quell.families.transport import AbstractTransport, Relaxation


class AbstractDiscreteFamily(AbstractFamily):
    """A family over finitely many values; there is no path through its samples."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset({Capability.ENTROPY, Capability.MOMENTS, Capability.RELAXATION})

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        return ()

    @abstractmethod
    def support(self) -> Float[Array, "value latent"]:
        """All values, one per row."""

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

    def sample(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return self.harden(self.hidden(params, noise))

    def latent(
        self, transport: AbstractTransport, params: PyTree, noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        if not isinstance(transport, Relaxation):
            return self.sample(params, noise)
        if not transport.conditional:
            return self.soften(self.hidden(params, noise), transport.temperature)
        hidden = self.hidden_given(params, self.sample(params, noise), noise)
        return self.soften(hidden, transport.temperature)

    def log_density(
        self, transport: AbstractTransport, params: PyTree, noise: Float[Array, "noise"]
    ) -> Float[Array, ""]:
        if not isinstance(transport, Relaxation):
            return super().log_density(transport, params, noise)
        return self.hidden_log_prob(params, jax.lax.stop_gradient(self.hidden(params, noise)))
