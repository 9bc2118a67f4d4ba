# SPDX-License-Identifier: Apache-2.0
"""Independent blocks of different families."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key, PyTree

from quell.families.base import AbstractFamily, Capability
from quell.families.transport import SAMPLE, AbstractTransport


class Product(AbstractFamily):
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
                f"`blocks` must be families by name, got {blocks!r}; "
                "try `Product({'a': FullRank(3), 'b': Bernoulli(2)})`."
            )
        self.blocks, self.order = dict(blocks), tuple(blocks)

    @property
    def dim(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Length of the latent."""
        return sum(block.dim for block in self.blocks.values())

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What all blocks have of entropy, moments and Gaussian predictors; a path for one is enough to generalize."""
        shared = {Capability.ENTROPY, Capability.MOMENTS, Capability.GAUSSIAN}
        common = frozenset(shared.intersection(*(block.capabilities for block in self.blocks.values())))
        moves = any(block.transports for block in self.blocks.values())
        return common | {Capability.GENERALIZED} if moves else common

    @property
    def transports(self) -> tuple[AbstractTransport, ...]:
        return (SAMPLE,) if all(block.transports for block in self.blocks.values()) else ()

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

    def sample(self, params: PyTree, noise: Float[Array, "noise"]) -> Float[Array, "latent"]:
        rows = self._split_noise(noise)
        return jnp.concatenate([self.blocks[name].sample(params[name], rows[name]) for name in self.order])

    def generalized(
        self, params: PyTree, held: PyTree, noise: Float[Array, "noise"]
    ) -> tuple[Float[Array, "latent"], Float[Array, ""]]:
        """A path for the blocks that have a transport; for the others the density of the sample that is held."""
        rows, pieces, logs = self._split_noise(noise), [], []
        for name in self.order:
            block = self.blocks[name]
            moved = block.sample(params[name] if block.transports else held[name], rows[name])
            logs += [] if block.transports else [block.log_prob(params[name], moved)]
            pieces.append(moved)
        return jnp.concatenate(pieces), _total(logs)

    def split(self, z: Float[Array, "*batch latent"]) -> dict[str, Float[Array, "*batch _"]]:
        """The latent by block."""
        return _split(z, {name: self.blocks[name].dim for name in self.order})

    def _split_noise(self, noise: Float[Array, "noise"]) -> dict[str, Float[Array, "_"]]:
        key = jax.eval_shape(lambda: jax.random.key(0))
        shapes = [
            jax.eval_shape(lambda k, block=self.blocks[name]: block.noise(k, 1, noise.dtype), key).shape
            for name in self.order
        ]
        return _split(noise, {name: shape[1] for name, shape in zip(self.order, shapes, strict=True)})


def _split(array: Float[Array, "*batch flat"], lengths: dict[str, int]) -> dict[str, Float[Array, "*batch _"]]:
    pieces, start = {}, 0
    for name, length in lengths.items():
        pieces[name] = array[..., start : start + length]
        start += length
    return pieces


def _total(values: list[Float[Array, ""]]) -> Float[Array, ""]:
    return jnp.sum(jnp.stack(values)) if values else jnp.zeros(())
