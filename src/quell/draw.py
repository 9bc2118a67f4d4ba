# SPDX-License-Identifier: Apache-2.0
"""Randomness as a value: the noise and the minibatches of one step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from quell.checks import check_count, check_key
from quell.families import AbstractFamily
from quell.problem import Problem

FLOYD_LIMIT = 32
"""Above this multiple of the data, the square of the batch size makes sorting all data the faster way."""


class Draw(eqx.Module):
    """All the randomness of one step.

    Args:
        noise: base noise, one row a replicate.
        index: rows of the data: a minibatch a replicate `[R, b]`, one minibatch for all `[b]`, or `None`
            for the full data.
    """

    noise: Float[Array, "sample noise"]
    index: Int[Array, "sample datum"] | Int[Array, "datum"] | None

    @property
    def is_shared(self) -> bool:
        """Whether the replicates share one random minibatch, and so depend on each other."""
        return self.index is not None and self.index.ndim == 1 and self.noise.shape[0] > 1


class Sampler(eqx.Module):
    """How a step draws: the number of replicates and the minibatch of each.

    `Sampler(10, 1)` is the paper's setting (each datum its own noise), `Sampler(1, 100)` what most
    people run, `Sampler(10)` many particles on the full data.

    Args:
        num_replicates: independent copies of the noise.
        batch_size: data in a minibatch; `None` for the full data.
        shared: one minibatch for all replicates; cheaper, but then the replicates are not independent.
        replace: draw the data of a minibatch with replacement.
    """

    num_replicates: int = 1
    batch_size: int | None = None
    shared: bool = False
    replace: bool = False

    def __check_init__(self) -> None:
        """Refuse counts that are not positive integers."""
        check_count("num_replicates", self.num_replicates)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)

    def check(self, problem: Problem) -> None:
        """Refuse a minibatch larger than the data."""
        if self.batch_size is not None and self.batch_size > problem.model.num_data:
            raise ValueError(
                f"`batch_size` was given as {self.batch_size} for {problem.model.num_data} data. At most "
                f"{problem.model.num_data} was needed. Write `batch_size=None` for the full data."
            )

    @property
    def num_units(self) -> int:
        """Independent units a draw: replicates, or one where they share a random minibatch."""
        return 1 if self.shared and self.batch_size is not None else self.num_replicates

    def draw(self, key: Key[Array, ""], family: AbstractFamily, num_data: int, dtype: DTypeLike) -> Draw:
        """Turn a key into the noise and the minibatches of one step."""
        check_key(key)
        noise_key, data_key = jax.random.split(key)
        noise = family.noise(noise_key, self.num_replicates, dtype)
        if self.batch_size is None:
            return Draw(noise, None)
        num = 1 if self.shared else self.num_replicates
        index = self._index(data_key, num, self.batch_size, num_data)
        return Draw(noise, index[0] if self.shared else index)

    def _index(self, key: Key[Array, ""], num: int, size: int, num_data: int) -> Int[Array, "sample datum"]:
        if self.replace or size == 1:
            return jax.random.randint(key, (num, size), 0, num_data)
        if size**2 <= FLOYD_LIMIT * num_data:
            return _distinct(key, num, size, num_data)
        return jax.lax.top_k(jax.random.uniform(key, (num, num_data)), size)[1]


def _distinct(key: Key[Array, ""], num: int, size: int, num_data: int) -> Int[Array, "sample datum"]:
    """Uniform subsets by Floyd's algorithm: `size` steps of one comparison each, whatever the data's size."""
    tops = jnp.arange(num_data - size, num_data)
    picks = jax.random.randint(key, (num, size), 0, tops + 1)

    def insert(chosen: Int[Array, "sample datum"], k: Int[Array, ""]) -> tuple[Int[Array, "sample datum"], None]:
        taken = jnp.any(chosen == picks[:, k, None], axis=1)
        return chosen.at[:, k].set(jnp.where(taken, tops[k], picks[:, k])), None

    chosen, _ = jax.lax.scan(insert, jnp.full((num, size), -1, picks.dtype), jnp.arange(size))
    return chosen
