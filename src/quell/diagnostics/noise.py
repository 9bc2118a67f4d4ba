# SPDX-License-Identifier: Apache-2.0
"""How noisy the gradient is: with and without the variates, block by block."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.compilation import quick_jit
from quell.diagnostics.blocks import vectors_by_block
from quell.diagnostics.covariance import Covariances, step_covariances
from quell.diagnostics.estimate import Estimate, mean_of, ratio_of
from quell.gradient import Gradient, GradientState


@dataclasses.dataclass(frozen=True)
class BlockVariance:
    """Variance of the gradient in one block of parameters, summed over its coordinates.

    Attributes:
        name: a top-level part of the parameters, such as `loc` or a block of a `Product`.
        base: of the base gradient alone.
        combined: with the variates, at the weights in use.
        ratio: base over combined: how many times quieter the variates make it.
    """

    name: str
    base: Estimate
    combined: Estimate
    ratio: Estimate


@dataclasses.dataclass(frozen=True)
class GradientVariance:
    """Variance of one step's gradient, for the loss `-ELBO / num_data`.

    Attributes:
        blocks: of the parameters.
        total: over all of them.
        num: steps that were drawn.
    """

    blocks: tuple[BlockVariance, ...]
    total: BlockVariance
    num: int

    def __repr__(self) -> str:
        """A line for each block, and the total."""
        rows = [(block.name, block.base, block.combined, block.ratio) for block in (*self.blocks, self.total)]
        width = max(len(row[0]) for row in rows)
        lines = [
            f"  {name:<{width}}  base {base.value:.3g}, combined {combined.value:.3g}: {ratio} times quieter"
            for name, base, combined, ratio in rows
        ]
        return "\n".join([f"GradientVariance({self.num:,} draws)", *lines])


def gradient_variance(
    key: Key[Array, ""], gradient: Gradient, params: PyTree, state: GradientState, *, num: int = 1000
) -> GradientVariance:
    r"""Variance of base and combined gradient from fresh draws, at any point of a fit.

    With the weights \(a\) that `state` has learned, the combined gradient is \(h + \sum_k a_k c_k\). All draws are
    new, so that neither the weights nor the mean gradient distort the variance.

    Args:
        key: for the draws.
        gradient: problem, variates and sampler.
        params: where to measure: `result.params`, or those of a step on the way.
        state: that belongs to them: `result.state`.
        num: steps to draw, at least 20.

    Returns:
        The variance by block and in all, with standard errors from ten groups of draws.

    Bias: none in the variances; that of a ratio of averages in the ratio.
    Cost: `num` steps, with one pull-back for each variate.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> variates = quell.paper.variates(["c1", "c2", "c7"])
        >>> result = quell.fit(model, quell.MeanField(2), variates=variates, steps=50, key=jax.random.key(0))
        >>> noise = quell.diagnostics.gradient_variance(
        ...     jax.random.key(1), result.gradient, result.params, result.state, num=100
        ... )
        >>> [block.name for block in noise.blocks], noise.total.ratio.value > 1
        (['loc', 'scale'], True)
    """
    covariances = step_covariances(key, gradient, params, state, num=num)
    return variance_from(covariances, gradient, params, state, num=num)


def variance_from(
    covariances: Covariances, gradient: Gradient, params: PyTree, state: GradientState, *, num: int
) -> GradientVariance:
    """The variances from covariances that were drawn already."""
    names = list(vectors_by_block(params, by_leaf=gradient.rule.by_leaf))
    weights = weights_in_use(gradient, state)
    weights = np.broadcast_to(weights, (len(names), weights.shape[-1]))
    blocks = [block_variance(name, covariances[:, k], weights[k]) for k, name in enumerate(names)]
    base, combined = covariances[..., 0, 0].sum(axis=1), variance_with(covariances, weights).sum(axis=1)
    return GradientVariance(tuple(blocks), _block_variance("total", base, combined), num)


def weights_in_use(gradient: Gradient, state: GradientState) -> Float[np.ndarray, "*leaf variate"]:
    """The weights that the next step would use."""
    return np.asarray(_weights(gradient, state), np.float64)


@quick_jit
def _weights(gradient: Gradient, state: GradientState) -> Float[Array, "*leaf variate"]:
    return gradient.weights(state)


def block_variance(
    name: str, covariances: Float[np.ndarray, "group joint joint"], weights: Float[np.ndarray, "variate"]
) -> BlockVariance:
    """Variances of one block from the covariances of base gradient and variates."""
    return _block_variance(name, covariances[:, 0, 0], variance_with(covariances, weights))


def _block_variance(name: str, base: Float[np.ndarray, "group"], combined: Float[np.ndarray, "group"]) -> BlockVariance:
    return BlockVariance(name, mean_of(base), mean_of(combined), ratio_of(base, combined))


def variance_with(
    covariances: Float[np.ndarray, "*groups joint joint"], weights: Float[np.ndarray, "... variate"]
) -> Float[np.ndarray, "*groups"]:
    r"""Variance of \(h + \sum_k a_k c_k\) in each group of draws."""
    full = np.concatenate([np.ones((*weights.shape[:-1], 1)), weights], axis=-1)
    return np.einsum("...i,...ij,...j->...", full, covariances, full)
