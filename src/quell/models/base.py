# SPDX-License-Identifier: Apache-2.0
"""What quell knows about p: a per-datum log-likelihood, a prior and the data."""

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell.core.cached import cached_beside
from quell.data.access import num_rows
from quell.models.predictor import AbstractPredictor
from quell.models.prior import AbstractPrior
from quell.models.quadratic import Quadratic, expand_function
from quell.structure import Structure, is_concave, read_rows, read_structure


@dataclasses.dataclass(frozen=True, eq=False)
class Labels:
    """What ArviZ knows of a model beside its latents.

    Args:
        dims: names of the axes of variables, by name.
        coords: labels along those axes.
        constants: inputs of the model, by name.
        observed: data of the model, by name.
    """

    dims: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    observed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


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

    def expand(self, anchor: Float[Array, "latent"], batch: PyTree) -> Quadratic:
        """Second-order Taylor expansion in the latent of the summed log-likelihood of a batch, by autodiff."""
        return expand_function(lambda z: jnp.sum(self.log_likelihood(z, batch)), anchor)

    @abstractmethod
    def data_expansion(self) -> AbstractDataExpansion | None:
        """Second-order Taylor expansion in the data around their mean; `None` where unknown."""

    @property
    def predictor(self) -> AbstractPredictor | None:
        """The linear functions through which rows see the latent, one each; `None` where no such structure is known."""
        return None

    def log_joint(self, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """Log density of the data and the latent."""
        return jnp.sum(self.log_likelihood(z, self.data)) + self.prior.log_prob(z)

    @property
    @cached_beside
    def addends(self) -> Structure:
        """The addends of `log_joint` and the linear functions of the latent that they see, as its program has them.

        Cost: a trace of the program, and arrays as large as the data.
        """
        return read_structure(self.log_joint, self.dim)

    @property
    @cached_beside
    def row_addends(self) -> Structure:
        """The addends of the log-likelihoods of all data, with the datum that each is of, and without constants."""
        return read_rows(lambda z: self.log_likelihood(z, self.data), self.dim)

    @property
    @cached_beside
    def is_log_concave(self) -> bool:
        """Whether `log_joint` is known to be concave, addend by addend."""
        return is_concave(self.addends)

    @property
    def has_cheap_expansion(self) -> bool:
        """Whether `expand` costs about as much as a gradient, instead of a dense Hessian."""
        return False

    @property
    def has_independent_rows(self) -> bool:
        """Whether each row is known to have the same log-likelihood alone as in any batch, so that none is tried."""
        return False

    @property
    def likelihood_is_quadratic(self) -> bool:
        """Whether the log-likelihood is known to be a quadratic in the latent."""
        return False

    @abstractmethod
    def unravel(self, z: Float[Array, "latent"]) -> Any:
        """The latent in the shape the user thinks in."""

    def constrain(self, z: Float[Array, "latent"]) -> Any:
        """The latent as its user reads it: on its own scale, with what is computed from it; `unravel` by default."""
        return self.unravel(z)

    def named_log_likelihoods(self, z: Float[Array, "latent"]) -> dict[str, Array] | None:
        """Those of each observed variable, one for each of its events; `None` where data have no names."""
        return None

    @property
    def labels(self) -> Labels:
        """Names of axes and what else ArviZ knows of a model; nothing by default."""
        return Labels()

    @property
    def num_data(self) -> int:
        """Number of data: the length of the leading axis that all data arrays share."""
        return num_rows(self.data)
