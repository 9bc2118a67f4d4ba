# SPDX-License-Identifier: Apache-2.0
"""Independent Bernoulli variables."""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count
from quell.families.discrete import AbstractDiscreteFamily
from quell.families.quantile import open_uniform


class Logits(NamedTuple):
    """Parameters of a discrete family: log odds, or unnormalised log probabilities."""

    logits: Float[Array, "*batch latent"] | Float[Array, "*batch variable category"]


class Bernoulli(AbstractDiscreteFamily):
    r"""Independent variables in {0, 1} with log odds \(w\): \(z_i = 1\) where \(w_i + \mathrm{logit}(u_i) > 0\).

    Args:
        dim: number of variables.

    Example:
        >>> import quell
        >>> quell.Bernoulli(3).support().shape
        (8, 3)
    """

    dim: int

    def __check_init__(self) -> None:
        """Refuse a dimension that is not positive."""
        check_count("dim", self.dim)

    def init(self, *, dtype: DTypeLike | None = None) -> Logits:
        return Logits(jnp.zeros(self.dim, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        return open_uniform(key, (num, 2 * self.dim), dtype)

    def log_prob(self, params: Logits, z: Float[Array, "latent"]) -> Float[Array, ""]:
        return jnp.sum(z * params.logits - jax.nn.softplus(params.logits))

    def entropy(self, params: Logits) -> Float[Array, ""]:
        return jnp.sum(jax.nn.softplus(params.logits) - jax.nn.sigmoid(params.logits) * params.logits)

    def mean(self, params: Logits) -> Float[Array, "latent"]:
        return jax.nn.sigmoid(params.logits)

    def variance(self, params: Logits) -> Float[Array, "latent"]:
        return jax.nn.sigmoid(params.logits) * jax.nn.sigmoid(-params.logits)

    def covariance_product(self, params: Logits, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        return rows * self.variance(params)

    def support(self) -> Float[Array, "value latent"]:
        return jnp.array(list(itertools.product((0.0, 1.0), repeat=self.dim)))

    def hidden(self, params: Logits, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return params.logits + _logit(noise[: self.dim])

    def hidden_given(
        self, params: Logits, sample: Float[Array, "latent"], noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        """Logits plus the logit of a uniform number beyond the threshold, in a form that does not round to infinity."""
        free, w = _logit(noise[self.dim :]), params.logits
        above = jax.nn.softplus(free + jax.nn.softplus(w))
        below = -jax.nn.softplus(jax.nn.softplus(-w) - free)
        return jnp.where(sample > 0.5, above, below)

    def hidden_log_prob(self, params: Logits, hidden: Float[Array, "latent"]) -> Float[Array, ""]:
        step = hidden - params.logits
        return jnp.sum(-step - 2.0 * jax.nn.softplus(-step))

    def harden(self, hidden: Float[Array, "latent"]) -> Float[Array, "latent"]:
        return (hidden > 0).astype(hidden.dtype)

    def soften(self, hidden: Float[Array, "latent"], temperature: float) -> Float[Array, "latent"]:
        return jax.nn.sigmoid(hidden / temperature)


def _logit(u: Float[Array, "latent"]) -> Float[Array, "latent"]:
    return jnp.log(u) - jnp.log1p(-u)
