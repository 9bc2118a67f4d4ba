# SPDX-License-Identifier: Apache-2.0
"""Independent blocks of different families."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.families.base import AbstractFamily
from quell.families.dense import AbstractDenseFamily, DenseAlgebra
from quell.families.factored import FactoredGradient


class Product(AbstractDenseFamily):
    r"""Named blocks \(q_w(z) = \prod_b q_{w_b}(z_b)\); the latent is their concatenation in the order given.

    Blocks with a transport are moved along a path, discrete ones are not; so a product with both kinds has no transport
    for all of it, but a generalized reparameterization: a path for the one kind, a score for the other.

    Args:
        blocks: families by name.

    Example:
        >>> import quell
        >>> family = quell.Product({"weights": quell.FullRank(3), "switches": quell.Bernoulli(2)})
        >>> family.dim, sorted(family.init())
        (5, ['switches', 'weights'])
    """

    blocks: dict[str, AbstractFamily]
    order: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, blocks: Mapping[str, AbstractFamily]) -> None:
        """Keep the blocks and their order."""
        if not blocks or not all(isinstance(block, AbstractFamily) for block in blocks.values()):
            raise ValueError(
                f"`blocks` was given as {blocks!r}. Families by name were needed. "
                "Write for example `Product({'a': FullRank(3), 'b': Bernoulli(2)})`."
            )
        self.blocks, self.order = dict(blocks), tuple(blocks)

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Length of the latent."""
        return sum(block.dim for block in self.blocks.values())

    @property
    def transports(self) -> tuple[str, ...]:
        return ("joint",) if all(block.transports for block in self.blocks.values()) else ()

    @property
    def has_generalized(self) -> bool:
        return any(block.transports for block in self.blocks.values())

    @property
    def is_gaussian(self) -> bool:
        return all(block.is_gaussian for block in self.blocks.values())

    @property
    def num_params(self) -> int:
        return sum(block.num_params for block in self.blocks.values())

    @property
    def num_leaf_params(self) -> tuple[int, ...]:
        return tuple(num for name in sorted(self.blocks) for num in self.blocks[name].num_leaf_params)

    def init(self, *, dtype: DTypeLike | None = None) -> PyTree:
        return {name: block.init(dtype=dtype) for name, block in self.blocks.items()}

    def noise(self, key: Key[Array, ""], num: int, dtype: DTypeLike) -> Float[Array, "sample noise"]:
        keys = jax.random.split(key, len(self.order))
        pieces = [self.blocks[name].noise(k, num, dtype) for name, k in zip(self.order, keys, strict=True)]
        return jnp.concatenate(pieces, axis=1)

    def log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        pieces = self.split(z)
        return _total([self.blocks[name].log_prob(params[name], pieces[name]) for name in self.order])

    def entropy(self, params: PyTree) -> Float[Array, ""]:
        return _total([self.blocks[name].entropy(params[name]) for name in self.order])

    def mean(self, params: PyTree) -> Float[Array, "latent"]:
        return jnp.concatenate([self.blocks[name].mean(params[name]) for name in self.order])

    def variance(self, params: PyTree) -> Float[Array, "latent"]:
        return jnp.concatenate([self.blocks[name].variance(params[name]) for name in self.order])

    def covariance_product(self, params: PyTree, rows: Float[Array, "row latent"]) -> Float[Array, "row latent"]:
        pieces = self.split(rows)
        products = [self.blocks[name].covariance_product(params[name], pieces[name]) for name in self.order]
        return jnp.concatenate(products, axis=-1)

    def transport(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        return jnp.concatenate([self._block_latent(b, params[b], row) for b, row in self._split_noise(noise).items()])

    def algebra(self, params: PyTree, noise: Float[Array, "sample noise"]) -> "ProductAlgebra":
        return ProductAlgebra(self, params, noise)

    def split(self, z: Float[Array, "*batch latent"]) -> dict[str, Float[Array, "*batch _"]]:
        """The latent by block."""
        return _split(z, {name: self.blocks[name].dim for name in self.order})

    def path(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        """The latent, differentiable in the parameters of those blocks that have a transport."""
        pieces = []
        for name, row in self._split_noise(noise).items():
            latent = self._block_latent(name, params[name], row)
            pieces.append(latent if self.blocks[name].transports else jax.lax.stop_gradient(latent))
        return jnp.concatenate(pieces)

    def score_log_prob(self, params: PyTree, z: Float[Array, "latent"]) -> Float[Array, ""]:
        """Log density of the blocks that have no transport."""
        pieces = self.split(z)
        logs = [self.blocks[b].log_prob(params[b], pieces[b]) for b in self.order if not self.blocks[b].transports]
        return _total(logs)

    def _block_latent(self, name: str, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "block"]:
        block = self.blocks[name]
        return block.algebra(params, noise[None]).latents(block.sampling)[0]

    def _split_noise(self, noise: Float[Array, "noise"]) -> dict[str, Float[Array, "_"]]:
        key = jax.eval_shape(lambda: jax.random.key(0))
        shapes = [
            jax.eval_shape(lambda k, block=self.blocks[name]: block.noise(k, 1, noise.dtype), key).shape
            for name in self.order
        ]
        return _split(noise, {name: shape[1] for name, shape in zip(self.order, shapes, strict=True)})


class ProductAlgebra(DenseAlgebra):
    """Gradients of a product of blocks."""

    family: Product

    def generalized(self, values: Float[Array, "sample"], grads: Float[Array, "sample latent"]) -> FactoredGradient:
        def one(noise: Array, value: Array, grad: Array) -> PyTree:
            z = jax.lax.stop_gradient(self.family.path(self.params, noise))

            def surrogate(w: PyTree) -> Array:
                return grad @ self.family.path(w, noise) + value * self.family.score_log_prob(w, z)

            return jax.grad(surrogate)(self.params)

        return FactoredGradient(dense=jax.vmap(one)(self.noise, values, grads))


def _split(array: Float[Array, "*batch flat"], lengths: dict[str, int]) -> dict[str, Float[Array, "*batch _"]]:
    pieces, start = {}, 0
    for name, length in lengths.items():
        pieces[name] = array[..., start : start + length]
        start += length
    return pieces


def _total(values: list[Float[Array, ""]]) -> Float[Array, ""]:
    return jnp.sum(jnp.stack(values)) if values else jnp.zeros(())
