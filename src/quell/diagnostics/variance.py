# SPDX-License-Identifier: Apache-2.0
"""Variance of the gradient, with and without the variates, block by block."""

import dataclasses

import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.compilation import quick_jit
from quell.core.estimate import Estimate, mean_of, ratio_of
from quell.diagnostics.covariance import BlockCovariances, step_covariances, variance_with, vectors_by_block
from quell.gradient import Gradient, GradientState


@dataclasses.dataclass(frozen=True)
class BlockVariance:
    """Variance of the gradient in one block of parameters, summed over its coordinates.

    Attributes:
        name: of the block, such as `loc` or a part of a `Product`.
        base: of the base gradient alone.
        combined: with the variates, at their current weights.
        ratio: base over combined, the factor by which the variates lower the variance.
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
        """A line per block, and the total."""
        rows = (*self.blocks, self.total)
        width = max(len(row.name) for row in rows)
        lines = [
            f"  {row.name:<{width}}  base {row.base.value:.3g}, combined {row.combined.value:.3g}: "
            f"{row.ratio} times lower"
            for row in rows
        ]
        return "\n".join([f"GradientVariance({self.num:,} draws)", *lines])


def gradient_variance(
    key: Key[Array, ""], gradient: Gradient, params: PyTree, state: GradientState, *, num: int = 1000
) -> GradientVariance:
    r"""Variance of base and combined gradient from fresh draws, at any point of a fit.

    With the weights \(a\) that `state` has learned, the combined gradient is \(h + \sum_k a_k c_k\). All draws are
    new, so that neither the weights nor the mean gradient bias the variance.

    Args:
        key: for the draws.
        gradient: problem, variates and sampler.
        params: where to measure: `result.params`, or those of an earlier step.
        state: of the gradient at these parameters: `result.state`.
        num: steps to draw, at least 20.

    Returns:
        The variance by block and in total, with standard errors from ten groups of draws.

    Bias: none in the variances; that of a ratio of averages in the ratio.
    Cost: `num` steps, with one pull-back per variate.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> variates = quell.paper.variates(["c1", "c2", "c7"])
        >>> result = quell.fit(model, quell.MeanField(2), variates=variates, steps=50, key=jax.random.key(0))
        >>> found = quell.diagnostics.gradient_variance(
        ...     jax.random.key(1), result.gradient, result.params, result.state, num=100
        ... )
        >>> [block.name for block in found.blocks], found.total.ratio.value > 1
        (['loc', 'scale'], True)
    """
    covariances = step_covariances(key, gradient, params, state, num=num)
    return variance_from(covariances, gradient, params, state, num=num)


def variance_from(
    covariances: BlockCovariances, gradient: Gradient, params: PyTree, state: GradientState, *, num: int
) -> GradientVariance:
    """The variances, from given covariances of `num` draws."""
    names = list(vectors_by_block(params, by_leaf=gradient.rule.by_leaf))
    base, combined = covariances[..., 0, 0], variance_with(covariances, current_weights(gradient, state))
    blocks = [_block(name, base[:, k], combined[:, k]) for k, name in enumerate(names)]
    return GradientVariance(tuple(blocks), _block("total", base.sum(axis=1), combined.sum(axis=1)), num)


def current_weights(gradient: Gradient, state: GradientState) -> Float[np.ndarray, "*leaf variate"]:
    """The weights that the next step would use."""
    return np.asarray(quick_jit(Gradient.weights)(gradient, state), np.float64)


def _block(name: str, base: Float[np.ndarray, "group"], combined: Float[np.ndarray, "group"]) -> BlockVariance:
    return BlockVariance(name, mean_of(base), mean_of(combined), ratio_of(base, combined))
