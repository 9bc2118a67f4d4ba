# SPDX-License-Identifier: Apache-2.0
"""The Normal-Wishart prior over the moments, seen through the traces of its blocks."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from quell.combine.moments import Moments


class NormalWishart(eqx.Module):
    r"""Prior belief about the second moments of \((h, C)\).

    Args:
        gram: traces of the blocks \(V_{c_k c_l}\) of \(V_0\).
        cross: traces of the blocks \(V_{h c_k}\).
        strength: \(n_0\), how many samples the belief is worth. The best weights do not depend on it: it
            scales both sides of their equation alike.

    References: Geffner & Domke (2018), appendix, proof of theorem 4.2.
    """

    gram: Float[Array, "variate variate"]
    cross: Float[Array, "variate"]
    strength: float = 1.0

    def __check_init__(self) -> None:
        """Refuse a strength that is not positive, and traces that do not belong together."""
        if not self.strength > 0:
            raise ValueError(f"`strength` must be positive, got {self.strength}.")
        if self.gram.shape != (*self.cross.shape, *self.cross.shape):
            raise ValueError(
                f"`gram` must be a square matrix of the length of `cross`, got shapes {self.gram.shape} and "
                f"{self.cross.shape}."
            )

    def part(self, members: Int[np.ndarray, "variate"]) -> "NormalWishart":
        """The traces of some of the variates."""
        return NormalWishart(self.gram[members[:, None], members], self.cross[members], self.strength)


def isotropic(v0: float, *, num_params: int, num_variates: int, dtype: DTypeLike) -> NormalWishart:
    r"""The prior \(V_0 = v_0 I\), whose blocks have traces \(D v_0\) and zero."""
    gram = num_params * v0 * jnp.eye(num_variates, dtype=dtype)
    return NormalWishart(gram, jnp.zeros(num_variates, dtype))


def posterior(
    prior: NormalWishart, average: Moments, num_samples: float | Float[Array, ""]
) -> tuple[Float[Array, "variate variate"], Float[Array, "variate"]]:
    r"""Expected \(C^\top C\) and \(C^\top h\) of the next evaluation, given `num_samples` earlier ones.

    With \(\kappa = n_0/(n_0+M)\) these are \(\kappa/n_0\) times the prior's traces plus \(1-\kappa\) times the
    averages.
    """
    total = prior.strength + num_samples
    gram = (prior.gram + num_samples * average.gram) / total
    cross = (prior.cross + num_samples * average.cross) / total
    return gram, cross
