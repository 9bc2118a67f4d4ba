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
        upcoming: the index of the next step, where it is known: data on disk are read ahead by it.
    """

    noise: Float[Array, "sample noise"]
    index: Int[Array, "sample datum"] | Int[Array, "datum"] | None
    upcoming: Int[Array, "sample datum"] | Int[Array, "datum"] | None = None

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
        num, size = 1 if self.shared else self.num_replicates, self.batch_size or 0
        keys = jax.random.split(key, 1 + num * size)
        noise = family.noise(keys[0], self.num_replicates, dtype)
        if self.batch_size is None:
            return Draw(noise, None)
        index = self._index(keys[1:].reshape(num, size), num_data)
        return Draw(noise, index[0] if self.shared else index)

    def _index(self, keys: Key[Array, "sample datum"], num_data: int) -> Int[Array, "sample datum"]:
        num, size = keys.shape
        if self.replace or size == 1:
            return _integers(keys, jnp.asarray(num_data))
        if size**2 <= FLOYD_LIMIT * num_data:
            return _distinct(keys, num_data)
        return jax.lax.top_k(jax.random.uniform(keys[0, 0], (num, num_data)), size)[1]


def _integers(keys: Key[Array, "sample datum"], limit: Int[Array, "*datum"]) -> Int[Array, "sample datum"]:
    """Uniform integers below a limit, one a key: the 64 bits of the key itself, by the remainder.

    A key that comes from a split is as random as what could be drawn with it. Drawing would be a second call of the
    generator, which takes as long as all the rest of a small draw.
    """
    words, limit = jax.random.key_data(keys), limit.astype(jnp.uint32)
    half = jnp.uint32(2**16) % limit
    carried = (words[..., 0] % limit) * (half * half % limit) + words[..., 1] % limit
    return (carried % limit).astype(jnp.int32)


def _distinct(keys: Key[Array, "sample datum"], num_data: int) -> Int[Array, "sample datum"]:
    """Uniform subsets by Floyd's algorithm: `size` steps of one comparison each, whatever the data's size."""
    num, size = keys.shape
    tops = jnp.arange(num_data - size, num_data, dtype=jnp.int32)
    picks = _integers(keys, tops + 1)

    def insert(chosen: Int[Array, "sample datum"], k: Int[Array, ""]) -> tuple[Int[Array, "sample datum"], None]:
        taken = jnp.any(chosen == picks[:, k, None], axis=1)
        return chosen.at[:, k].set(jnp.where(taken, tops[k], picks[:, k])), None

    chosen, _ = jax.lax.scan(insert, jnp.full((num, size), -1, picks.dtype), jnp.arange(size))
    return chosen
