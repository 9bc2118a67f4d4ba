# SPDX-License-Identifier: Apache-2.0
"""What quell knows about p: a per-datum log-likelihood, a prior and the data."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from quell.models.prior import AbstractPrior
from quell.quadratic import Quadratic


class AbstractDataExpansion(eqx.Module):
    """A Taylor expansion of the log-likelihood in the data, whose average over all data is cheap."""

    @abstractmethod
    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        """Expanded log-likelihood of each datum of a batch."""

    @abstractmethod
    def mean_log_likelihood(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """Average of `log_likelihood` over all data, from cached moments alone."""


class AbstractModel(eqx.Module):
    """A model of independent data given a flat latent `z`."""

    data: eqx.AbstractVar[PyTree]
    prior: eqx.AbstractVar[AbstractPrior]

    @property
    @abstractmethod
    def dim(self) -> int:
        """Length of the flat latent."""

    @abstractmethod
    def log_likelihood(self, z: Float[Array, "latent"], batch: PyTree) -> Float[Array, "datum"]:
        """Log-likelihood of each datum of a batch."""

    @abstractmethod
    def expand(self, anchor: Float[Array, "latent"], batch: PyTree) -> Quadratic:
        """Second-order Taylor expansion in the latent of the summed log-likelihood of a batch."""

    @abstractmethod
    def data_expansion(self) -> AbstractDataExpansion | None:
        """Second-order Taylor expansion in the data around their mean; `None` where unknown."""

    @property
    @abstractmethod
    def has_cheap_expansion(self) -> bool:
        """Whether `expand` costs about as much as a gradient, instead of a dense Hessian."""

    @property
    @abstractmethod
    def likelihood_is_quadratic(self) -> bool:
        """Whether the log-likelihood is exactly a quadratic in the latent."""

    @abstractmethod
    def unravel(self, z: Float[Array, "latent"]) -> Any:
        """The latent in the shape the user thinks in."""

    def constrain(self, z: Float[Array, "latent"]) -> Any:
        """The latent as its user reads it: on its own scale, with what is computed from it; `unravel` by default."""
        return self.unravel(z)

    @property
    def num_data(self) -> int:
        """Number of data: the length of the leading axis that all data arrays share."""
        return jax.tree.leaves(self.data)[0].shape[0]
