# SPDX-License-Identifier: Apache-2.0
"""Independent categorical variables, one-hot."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from quell.core.checks import check_count
from quell.families.bernoulli import Logits
from quell.families.discrete import AbstractDiscreteFamily
from quell.families.quantile import open_uniform


class Categorical(AbstractDiscreteFamily):
    r"""Independent one-hot variables: the place of the largest of \(w_k\) plus Gumbel noise.

    The latent is flat: the categories of the first variable, then those of the second, and so on.

    Args:
        num_variables: how many.
        num_categories: of each.

    Example:
        >>> import quell
        >>> quell.Categorical(2, 3).support().shape
        (9, 6)
    """

    num_variables: int
    num_categories: int

    def __check_init__(self) -> None:
        """Refuse counts that are too small."""
        check_count("num_variables", self.num_variables)
        check_count("num_categories", self.num_categories, least=2)

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Length of the flat latent."""
        return self.num_variables * self.num_categories

    def init(self, *, dtype: DTypeLike | None = None) -> Logits:
        return Logits(jnp.zeros(self._shape, dtype))

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        return open_uniform(key, (num, 2 * self.dim), dtype)

    def log_prob(self, params: Logits, z: Float[Array, "latent"]) -> Float[Array, ""]:
        return z @ jax.nn.log_softmax(params.logits).ravel()

    def entropy(self, params: Logits) -> Float[Array, ""]:
        logs = jax.nn.log_softmax(params.logits)
        return -jnp.sum(jnp.exp(logs) * logs)

    def mean(self, params: Logits) -> Float[Array, "latent"]:
        return jax.nn.softmax(params.logits).ravel()

    def variance(self, params: Logits) -> Float[Array, "latent"]:
        p = self.mean(params)
        return p * (1.0 - p)

    def covariance_product(self, params: Logits, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        p = jax.nn.softmax(params.logits)
        blocks = rows.reshape(-1, *self._shape)
        centred = blocks - jnp.sum(blocks * p, axis=-1, keepdims=True)
        return (p * centred).reshape(rows.shape)

    def support(self) -> Float[Array, "value latent"]:
        choices = np.eye(self.num_categories)
        return jnp.array([np.concatenate(rows) for rows in itertools.product(choices, repeat=self.num_variables)])

    def hidden(self, params: Logits, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return (jax.nn.log_softmax(params.logits) + _gumbel(noise[: self.dim].reshape(self._shape))).ravel()

    def hidden_given(
        self, params: Logits, sample: Float[Array, "latent"], noise: Float[Array, "noise"]
    ) -> Float[Array, "latent"]:
        r"""The largest is a standard Gumbel; the others are Gumbels below it."""
        logs, chosen = jax.nn.log_softmax(params.logits), sample.reshape(self._shape) > 0.5
        rates = -jnp.log(noise[self.dim :].reshape(self._shape))
        largest = jnp.sum(jnp.where(chosen, rates, 0.0), axis=-1, keepdims=True)
        others = -jnp.logaddexp(jnp.log(rates) - logs, jnp.log(largest))
        return jnp.where(chosen, -jnp.log(rates), others).ravel()

    def hidden_log_prob(self, params: Logits, hidden: Float[Array, "latent"]) -> Float[Array, ""]:
        step = hidden.reshape(self._shape) - jax.nn.log_softmax(params.logits)
        return jnp.sum(-step - jnp.exp(-step))

    def harden(self, hidden: Float[Array, "latent"]) -> Float[Array, "latent"]:
        largest = jnp.argmax(hidden.reshape(self._shape), axis=-1)
        return jax.nn.one_hot(largest, self.num_categories, dtype=hidden.dtype).ravel()

    def soften(self, hidden: Float[Array, "latent"], temperature: float) -> Float[Array, "latent"]:
        return jax.nn.softmax(hidden.reshape(self._shape) / temperature, axis=-1).ravel()

    @property
    def _shape(self) -> tuple[int, int]:
        return self.num_variables, self.num_categories


def _gumbel(u: Float[Array, "..."]) -> Float[Array, "..."]:
    return -jnp.log(-jnp.log(u))
