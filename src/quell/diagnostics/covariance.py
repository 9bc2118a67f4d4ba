# SPDX-License-Identifier: Apache-2.0
"""Covariances of the base gradient and the variates, from fresh draws at fixed parameters."""

import math
import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.compilation import quick_jit
from quell.evaluation import Evaluation
from quell.gradient import Gradient, GradientState

NUM_GROUPS = 10
"""Groups of draws, whose differences give the standard errors."""

LEAST_DRAWS = 2 * NUM_GROUPS
"""A covariance needs two draws per group."""

WHOLE = "params"
"""Name of the only block if the parameters are one array."""

_CHUNK = 20
_LARGEST_CHUNK = 2**24

BlockCovariances = Float[np.ndarray, "group block joint joint"]


def step_covariances(
    key: Key[Array, ""], gradient: Gradient, params: PyTree, state: GradientState, *, num: int
) -> BlockCovariances:
    r"""Covariances of what a step draws: the base gradient first, then each variate, summed over each block.

    Args:
        key: for the draws.
        gradient: problem, variates and sampler.
        params: where to measure.
        state: of the gradient; it must not have seen these draws.
        num: steps to draw, at least 20.

    Returns:
        For each of ten groups of draws and each block of parameters (each leaf, if weights are learned by leaf), the
        matrix of \(\sum_i \mathrm{Cov}(c_{ki}, c_{li})\) over the block's coordinates \(i\), for the gradient of the
        ELBO per datum. A variate that is not finite counts as zero, as in a fit.

    Bias: none.
    Cost: `num` steps, with one pull-back per variate; the memory of up to twenty dense gradients per variate.
    """
    check_key(key)
    check_count("num", num, least=LEAST_DRAWS)
    size = _chunk_size(gradient, params, num)
    num_chunks = math.ceil(num / NUM_GROUPS / size)
    chunks = [_chunk(gradient, one, params, state, size) for one in jax.random.split(key, NUM_GROUPS * num_chunks)]
    found = np.stack(jax.device_get(chunks)).astype(np.float64)
    return found.reshape(NUM_GROUPS, num_chunks, *found.shape[1:]).mean(axis=1)


def affordable_draws(
    key: Key[Array, ""], gradient: Gradient, params: PyTree, state: GradientState, *, seconds: float, most: int
) -> int:
    """Number of steps that can be drawn within a time, compilation not counted; between 20 and `most`."""
    size = _chunk_size(gradient, params, most)
    jax.block_until_ready(_chunk(gradient, key, params, state, size))
    began = time.perf_counter()
    jax.block_until_ready(_chunk(gradient, key, params, state, size))
    rounds = seconds / max(time.perf_counter() - began, 1e-6) / NUM_GROUPS
    return max(LEAST_DRAWS, min(most, max(1, int(rounds)) * size * NUM_GROUPS))


def variance_with(
    covariances: Float[np.ndarray, "*groups joint joint"], weights: Float[np.ndarray, "... variate"]
) -> Float[np.ndarray, "*groups"]:
    r"""Variance of \(h + \sum_k a_k c_k\) in each group of draws."""
    full = np.concatenate([np.ones((*weights.shape[:-1], 1)), weights], axis=-1)
    return np.einsum("...i,...ij,...j->...", full, covariances, full)


def vectors_by_block(params: PyTree, *, by_leaf: bool = False) -> dict[str, Float[Array, "_"]]:
    """The parameters as one vector per block: the fields of a Gaussian, the parts of a `Product`.

    Args:
        params: of a family.
        by_leaf: make each array a block.
    """
    found: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name = jax.tree_util.keystr(path if by_leaf else path[:1], simple=True, separator=".") or WHOLE
        found.setdefault(name, []).append(jnp.ravel(leaf))
    return {name: jnp.concatenate(leaves) for name, leaves in found.items()}


def _chunk_size(gradient: Gradient, params: PyTree, num: int) -> int:
    """Draws that are centred together; a larger chunk wastes fewer of them on the mean but needs more memory."""
    numbers = (len(gradient.variates) + 1) * sum(leaf.size for leaf in jax.tree.leaves(params))
    return max(2, min(num // NUM_GROUPS, _CHUNK, _LARGEST_CHUNK // numbers))


@quick_jit
def _chunk(
    gradient: Gradient, key: Key[Array, ""], params: PyTree, state: GradientState, size: int
) -> Float[Array, "block joint joint"]:
    dtype = jnp.result_type(*jax.tree.leaves(params))
    model, family = gradient.problem.model, gradient.problem.family

    def draw(one: Key[Array, ""]) -> tuple[Float[Array, "joint _"], ...]:
        evaluation = Evaluation(gradient.problem, params, gradient.sampler.draw(one, family, model.num_data, dtype))
        base, *variates = gradient.samples(evaluation, state)
        samples = [base, *(sample.where(sample.is_finite()) for sample in variates)]
        rows = [vectors_by_block(evaluation.algebra.pullback(one), by_leaf=gradient.rule.by_leaf) for one in samples]
        return tuple(jnp.stack([row[name] for row in rows]) for name in rows[0])

    blocks = jax.lax.map(draw, jax.random.split(key, size))
    return jnp.stack([_covariance(block) for block in blocks]) / float(model.num_data) ** 2


def _covariance(rows: Float[Array, "draw joint coordinate"]) -> Float[Array, "joint joint"]:
    centred = rows - jnp.mean(rows, axis=0)
    flat = jnp.moveaxis(centred, 1, 0).reshape(rows.shape[1], -1)
    return flat @ flat.T / (rows.shape[0] - 1)
