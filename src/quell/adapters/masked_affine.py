# SPDX-License-Identifier: Apache-2.0
"""An autoregressive layer of a flow, in few operations: what a short compilation needs."""

import jax
import jax.numpy as jnp
import numpy as np
from flowjax.bijections import AbstractBijection
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

UNIT = float(np.log(np.expm1(1.0)))
"""Whose softplus is one."""


class MaskedAffine(AbstractBijection):
    r"""\(y_i = m_i + s_i x_i\), where shift and scale depend on the coordinates before \(i\), by one hidden layer.

    Each unit sees the coordinates up to its rank, and a coordinate the units of lower rank. Ranks are spread evenly:
    with more coordinates than units a coordinate does not see the few just before it. Scales are softplus of what the
    network says. It says nothing at first: the last layer is zero, and \(y = x\).

    Args:
        dim: number of coordinates, at least two.
        width: of the hidden layer.
        is_reversed: whether "before" means after.
        seed: of the first layer's weights, uniform within \(\pm\) one over the root of `dim`.

    Cost: two products with matrices; an inverse takes `dim` of those, one after the other.

    References: Germain, Gregor, Murray & Larochelle (2015); Kingma et al. (2016).
    """

    shape: tuple[int, ...]
    cond_shape: tuple[int, ...] | None
    is_reversed: bool
    weights: tuple[Float[Array, "unit latent"], Float[Array, "output unit"]]
    biases: tuple[Float[Array, "unit"], Float[Array, "output"]]

    def __init__(self, dim: int, width: int, *, is_reversed: bool, seed: int) -> None:
        """Made by NumPy, which compiles nothing."""
        dtype, bound, rng = jnp.result_type(float), dim**-0.5, np.random.default_rng(seed)
        first = (rng.uniform(-bound, bound, size).astype(dtype) for size in ((width, dim), (width,)))
        last = (np.zeros(size, dtype) for size in ((2 * dim, width), (2 * dim,)))
        self.shape, self.cond_shape, self.is_reversed = (dim,), None, is_reversed
        self.weights, self.biases = zip(*(map(jnp.asarray, layer) for layer in (first, last)), strict=True)

    def transform_and_log_det(self, x: ArrayLike, condition: ArrayLike | None = None) -> tuple[Array, Array]:
        x = jnp.asarray(x)
        shift, scale = self._affine(x)
        return shift + scale * x, jnp.sum(jnp.log(scale))

    def inverse_and_log_det(self, y: ArrayLike, condition: ArrayLike | None = None) -> tuple[Array, Array]:
        y = jnp.asarray(y)

        def fill(number: Int[Array, ""], x: Array) -> Array:
            shift, scale = self._affine(x)
            place = self.shape[0] - 1 - number if self.is_reversed else number
            return x.at[place].set((y[place] - shift[place]) / scale[place])

        x = jax.lax.fori_loop(0, self.shape[0], fill, jnp.zeros_like(y))
        return x, -jnp.sum(jnp.log(self._affine(x)[1]))

    def _affine(self, x: Float[Array, "latent"]) -> tuple[Float[Array, "latent"], Float[Array, "latent"]]:
        weights = [weight * mask for weight, mask in zip(self.weights, self._masks, strict=True)]
        hidden = jax.nn.silu(weights[0] @ x + self.biases[0])
        shift, scale = jnp.split(weights[1] @ hidden + self.biases[1], 2)
        return shift, jax.nn.softplus(scale + UNIT)

    @property
    def _masks(self) -> tuple[Bool[np.ndarray, "unit latent"], Bool[np.ndarray, "output unit"]]:
        (dim,), width = self.shape, self.biases[0].shape[0]
        places = np.arange(dim)[::-1] if self.is_reversed else np.arange(dim)
        ranks = np.linspace(0, dim - 2, width).astype(int)
        return places <= ranks[:, None], np.tile(places, 2)[:, None] > ranks
