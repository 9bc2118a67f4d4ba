# SPDX-License-Identifier: Apache-2.0
"""Inner products of gradients with very many parameters, a block of coordinates at a time."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from quell.families.algebra import AbstractGradientAlgebra, dense_gram, dense_leaf_grams
from quell.families.factored import FactoredGradient

NUMBERS_AT_ONCE = 2**22
"""Numbers of dense gradients, of all samples and replicates together, that are in memory at a time."""

Start = int | Int[Array, ""]
DenseBlock = Callable[[Start, int], PyTree]
"""From the first coordinate and the number of them to the gradient of their parameters, for each replicate."""


class AbstractBlockAlgebra(AbstractGradientAlgebra):
    """Latents of a family whose parameters belong to coordinates, a few numbers each.

    Law: blocks, put together, are what `dense` gives.
    """

    @property
    @abstractmethod
    def num_coordinates(self) -> int:
        """Length of the latent."""

    @property
    @abstractmethod
    def numbers_per_coordinate(self) -> int:
        """Numbers of a dense sample for each coordinate, of all replicates together."""

    @abstractmethod
    def dense_block(self, gradient: FactoredGradient) -> DenseBlock:
        """`dense` as a function of the coordinates wanted."""

    def dense(self, gradient: FactoredGradient) -> PyTree[Float[Array, "sample ..."]]:
        return self.dense_block(gradient)(0, self.num_coordinates)

    def gram(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        return self._sum(dense_gram, gradients)

    def mean_gram(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "variate variate"]:
        return self._sum(lambda trees: dense_gram(_means(trees)), gradients)

    def leaf_grams(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        return self._sum(dense_leaf_grams, gradients)

    def mean_leaf_grams(self, gradients: Sequence[FactoredGradient]) -> Float[Array, "leaf variate variate"]:
        return self._sum(lambda trees: dense_leaf_grams(_means(trees)), gradients)

    def _sum(self, products: Callable[[list[PyTree]], Array], gradients: Sequence[FactoredGradient]) -> Array:
        blocks = [self.dense_block(gradient) for gradient in gradients]
        size = max(1, NUMBERS_AT_ONCE // (len(gradients) * self.numbers_per_coordinate))
        return sum_over_blocks(lambda *at: products([block(*at) for block in blocks]), self.num_coordinates, size)


def sum_over_blocks(function: Callable[[Start, int], Array], num: int, at_once: int) -> Array:
    """Sum a function of (first coordinate, number of them) over all coordinates, `at_once` of them at a time."""
    if num <= at_once:
        return function(0, num)
    like = jax.eval_shape(lambda: function(0, at_once))
    starts = jnp.arange(0, num - at_once + 1, at_once)
    zero = jnp.zeros(like.shape, like.dtype)
    total = jax.lax.scan(lambda sum_, start: (sum_ + function(start, at_once), None), zero, starts)[0]
    rest = num % at_once
    return total + function(num - rest, rest) if rest else total


def block_of(tree: Any, start: Start, size: int, *, axis: int = -1) -> Any:
    """Those coordinates of each array of a tree; the arrays themselves where these are all."""

    def cut(leaf: Array) -> Array:
        if leaf.shape[axis] == size:
            return leaf
        return jax.lax.dynamic_slice_in_dim(leaf, start, size, axis=axis % leaf.ndim)

    return jax.tree.map(cut, tree)


def _means(trees: list[PyTree]) -> list[PyTree]:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0, keepdims=True), trees)
