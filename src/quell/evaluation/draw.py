# SPDX-License-Identifier: Apache-2.0
"""Randomness as a value: the noise and the minibatches of one step."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from quell.core.checks import check_count, check_key
from quell.evaluation.problem import Problem
from quell.families import AbstractFamily

MOST_DATA = 2**31 - 1
"""Rows are numbered with 32 bits."""

FLOYD_LIMIT = 32
"""Above this multiple of the data, the square of the batch size makes sorting all data the faster way."""


class Draw(eqx.Module):
    """All the randomness of one step.

    Args:
        noise: base noise, one row per replicate.
        index: rows of the data: a minibatch per replicate `[R, b]`, one minibatch for all `[b]`, or `None`
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
    people run, `Sampler(10)` ten samples of the latent on the full data.

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
                f"`batch_size` must be at most the number of data, {problem.model.num_data}, got {self.batch_size}; "
                "try `batch_size=None` for the full data."
            )

    @property
    def num_units(self) -> int:
        """Independent units per draw: replicates, or one where they share a random minibatch."""
        return 1 if self.shared and self.batch_size is not None else self.num_replicates

    def draw(self, key: Key[Array, ""], family: AbstractFamily, num_data: int, dtype: DTypeLike) -> Draw:
        """Turn a key into the noise and the minibatches of one step."""
        check_key(key)
        if self.batch_size is not None and num_data > MOST_DATA:
            raise ValueError(f"`batch_size` must be None for more than {MOST_DATA} data, got {num_data} data.")
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
            return _integers(keys, jnp.asarray(num_data), num_data)
        if size**2 <= FLOYD_LIMIT * num_data:
            return _distinct(keys, num_data)
        return jax.lax.top_k(jax.random.uniform(keys[0, 0], (num, num_data)), size)[1]


def _integers(
    keys: Key[Array, "sample datum"], limit: Int[Array, "*datum"], largest: int
) -> Int[Array, "sample datum"]:
    """Uniform integers below a limit, one per key: the remainder of the 64 bits of the key itself.

    A key that comes from a split is as random as what could be drawn with it. Drawing would be a second call of the
    generator, which takes as long as all the rest of a small draw. Numbers of 32 bits are divided as on paper, with as
    many binary digits at a time as cannot overflow.

    Args:
        keys: one per integer.
        limit: above all of them; at most `largest`.
        largest: of the limits.

    Bias: chances differ from each other by a part in 2**64 over the limit.
    """
    words, limit = jax.random.key_data(keys), limit.astype(jnp.uint32)
    remainder, low, left = words[..., 0] % limit, words[..., 1], 32
    while left:
        digits = min(left, 32 - largest.bit_length())
        left -= digits
        remainder = ((remainder << digits) | ((low >> left) & jnp.uint32(2**digits - 1))) % limit
    return remainder.astype(jnp.int32)


def _distinct(keys: Key[Array, "sample datum"], num_data: int) -> Int[Array, "sample datum"]:
    """Uniform subsets by Floyd's algorithm: step `k` picks a number up to `top_k`, or takes that if it is taken."""
    tops = jnp.arange(num_data - keys.shape[1], num_data, dtype=jnp.int32)
    picks = _integers(keys, tops + 1, num_data)
    return jax.lax.platform_dependent(picks, tops, cpu=_one_by_one, default=_all_at_once)


def _one_by_one(picks: Int[Array, "sample datum"], tops: Int[Array, "datum"]) -> Int[Array, "sample datum"]:
    """`size` steps of one comparison each: the fastest way where a step costs little."""

    def insert(chosen: Int[Array, "sample datum"], k: Int[Array, ""]) -> tuple[Int[Array, "sample datum"], None]:
        taken = jnp.any(chosen == picks[:, k, None], axis=1)
        return chosen.at[:, k].set(jnp.where(taken, tops[k], picks[:, k])), None

    return jax.lax.scan(insert, jnp.full_like(picks, -1), jnp.arange(picks.shape[1]))[0]


def _all_at_once(picks: Int[Array, "sample datum"], tops: Int[Array, "datum"]) -> Int[Array, "sample datum"]:
    """The same numbers for a device that does much at once, where a thousand steps would be a thousand programs.

    What step `k` picked is taken if an earlier step picked the same, or if it is the top of an earlier step that took
    its top. The second refers to one earlier step only; following all references at once, twice as far each time,
    settles a thousand of them in ten rounds.
    """
    size = picks.shape[1]
    steps = jnp.arange(size, dtype=picks.dtype)
    refers = picks - tops[0]  # the step whose top was picked; negative where it was no top
    takes_top = _is_repeated(picks) | (refers == steps)
    refers = jnp.where((refers >= 0) & (refers < steps), refers, steps)
    for _ in range(size.bit_length()):
        takes_top = takes_top | jnp.take_along_axis(takes_top, refers, axis=1)
        refers = jnp.take_along_axis(refers, refers, axis=1)
    return jnp.where(takes_top, tops, picks)


def _is_repeated(picks: Int[Array, "sample datum"]) -> Bool[Array, "sample datum"]:
    """Whether the same number stands further to the left."""
    order = jnp.argsort(picks, axis=1, stable=True)
    sorted_ = jnp.take_along_axis(picks, order, axis=1)
    again = jnp.concatenate([jnp.zeros_like(picks[:, :1], bool), sorted_[:, 1:] == sorted_[:, :-1]], axis=1)
    return jnp.zeros_like(again).at[jnp.arange(picks.shape[0])[:, None], order].set(again)
