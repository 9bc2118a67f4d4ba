# SPDX-License-Identifier: Apache-2.0
"""Common random numbers, with the moments of the normal distribution."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, UInt32

from quell.core.host import remembered_part
from quell.families import AbstractFamily

Noise = Float[Array, "draw noise"]
NoiseOfBlock = Callable[[Int[Array, ""]], Noise]
"""The noise of a block, given its number."""

LAST_BLOCK = 2**32 - 1
"""The number of a block that no round has: keys that are derived of those of a block may be keys of its draws."""


class Draws(NamedTuple):
    """Common random numbers: the blocks `0, ..., blocks - 1` of a seed, and of each the pieces `0, ..., pieces - 1`."""

    seed: UInt32[Array, ""]
    blocks: Int[Array, ""]
    pieces: Int[Array, ""]

    @property
    def total(self) -> Int[Array, ""]:
        """Of all pieces."""
        return self.blocks * self.pieces


def common_noise(family: AbstractFamily, pairs: int, draws: Draws, dtype: Any) -> NoiseOfBlock:
    r"""Blocks of standard normal noise that is whitened.

    A block has \(\epsilon\) with each \(-\epsilon\), in two halves. Where a half has as many pairs as there are
    coordinates, the second moments of a block are those of the normal distribution, so that it is exact for a log
    density that is quadratic in the latent, and what is left of the noise is that of higher derivatives. Otherwise the
    second moment of each coordinate alone is, over all even blocks and over all odd ones, which are compared; so the
    noise of a block depends on how many there are. A piece of a block is not whitened by itself. Whitening \(m\) pairs
    puts them on a sphere, whose fourth moments are smaller than the normal ones by \(m/(m+2)\). So the squares of one
    half are multiplied by \(1 + (2/m)^{1/2}\) and those of the other by \(1 - (2/m)^{1/2}\): second moments stay as
    they are, and the expected fourth moments are normal.

    Args:
        family: whose noise is normal.
        pairs: of a block.
        draws: all blocks of which belong together.
        dtype: of the noise.

    Bias: that of sixth moments and higher ones. Sixth ones are \(m(m+6) / ((m+2)(m+4))\) of the normal ones with \(m\)
        pairs in a half: 0.98 for a block of 32 pairs, as most are, and 0.67 for one of 4, the fewest. Where blocks
        are whitened together \(m\) grows with them, and the bias falls.
    Cost: there, all noise is computed twice.
    """

    def block(number: Int[Array, ""]) -> Noise:
        return noise_of_block(family, pairs, draws.seed, number, dtype)

    shape = jax.eval_shape(block, jnp.zeros((), jnp.int32)).shape
    if _are_whitened_alone(pairs, shape[1]):
        return block
    scales = scales_of_blocks(family, pairs, draws.seed, draws.blocks, dtype)
    return lambda number: (_by_half(block(number)) * scales[number % 2][:, None]).reshape(shape)


@remembered_part
def noise_of_block(
    family: AbstractFamily, pairs: int, seed: UInt32[Array, ""], number: Int[Array, ""], dtype: Any
) -> Noise:
    """Whitened if that needs no other block; each piece has draws of both halves, with their mirrors."""
    num = pairs // 2
    halves = family.noise(_key(seed, number), pairs, dtype).reshape(2, num, -1)
    size = halves.shape[-1]
    if _are_whitened_alone(pairs, size):
        halves = jnp.linalg.qr(halves)[0] * jnp.sqrt(num * _squares(num, jnp.ones(size, dtype)))[:, None]
    mirrored = halves[:, :, None] * jnp.array([1.0, -1.0], dtype)[:, None]  # a stack of both would draw each twice
    return jnp.transpose(mirrored, (1, 0, 2, 3)).reshape(2 * pairs, size)


@remembered_part
def scales_of_blocks(
    family: AbstractFamily, pairs: int, seed: UInt32[Array, ""], blocks: Int[Array, ""], dtype: Any
) -> Float[Array, "2 2 noise"]:
    """What the halves of even and of odd blocks are multiplied by, coordinate by coordinate.

    Coordinates are independent of each other, and so is which half of each has the larger squares.
    """

    def add(number: Int[Array, ""], total: Float[Array, "2 2 noise"]) -> Float[Array, "2 2 noise"]:
        halves = _by_half(noise_of_block(family, pairs, seed, number, dtype))[:, :, 0]
        return total.at[number % 2].add(jnp.sum(halves**2, axis=0))

    def squares(parity: int) -> Float[Array, "2 noise"]:
        num = pairs // 2 * jnp.maximum((blocks + 1 - parity) // 2, 1)  # one block has no other half
        signs = jax.random.rademacher(_key(seed, LAST_BLOCK - parity), (size,), dtype)
        return num * _squares(num, signs)

    size = jax.eval_shape(lambda: family.noise(jax.random.key(0), 1, dtype)).shape[1]
    total = jax.lax.fori_loop(0, blocks, add, jnp.zeros((2, 2, size), dtype))
    return jnp.sqrt(jnp.stack([squares(0), squares(1)]) / total)


def _key(seed: UInt32[Array, ""], number: Int[Array, ""] | int) -> Key[Array, ""]:
    return jax.random.fold_in(jax.random.key(seed), number)


def _are_whitened_alone(pairs: int, size: int) -> bool:
    return pairs // 2 >= size


def _by_half(block: Noise) -> Float[Array, "pair 2 2 noise"]:
    """With axes for the halves and for the draw and its mirror."""
    return block.reshape(-1, 2, 2, block.shape[1])


def _squares(num: int | Int[Array, ""], signs: Float[Array, "noise"]) -> Float[Array, "2 noise"]:
    """Of two halves of so many pairs, relative to those of a sphere."""
    change = jnp.sqrt(2.0 / num).astype(signs.dtype)
    return 1.0 + change * jnp.stack([signs, -signs])
