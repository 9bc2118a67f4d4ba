# SPDX-License-Identifier: Apache-2.0
"""Inner products of the paper's seven variates at given weights: the basis of figures 1 and 4."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from quell.core.compilation import quick_jit
from quell.evaluation import Evaluation, Sampler
from quell.gradient import Gradient
from quell.paper.ensembles import SUBSETS, variates

FULL = "S7"


def rows_of(column: str) -> list[int]:
    """Rows of an ensemble in the joint matrix of `S7`, the base gradient's (row 0) left out."""
    return [1 + SUBSETS[FULL].index(variate.name) for variate in variates(column)]


@quick_jit
def joint_moments(
    gradient: Gradient, params: PyTree, keys: Key[Array, "group"], group_size: int
) -> Float[Array, "group joint joint"]:
    """Inner products of base gradient and variates, averaged over independent groups of evaluations.

    Args:
        gradient: with its variates.
        params: where to evaluate.
        keys: one per group.
        group_size: evaluations per group, of one datum each.
    """
    sampler = Sampler(num_replicates=group_size, batch_size=1)
    state = gradient.init(params)
    dtype = jnp.result_type(*jax.tree.leaves(params))

    def group(key: Key[Array, ""]) -> Float[Array, "joint joint"]:
        draw = sampler.draw(key, gradient.problem.family, gradient.problem.model.num_data, dtype)
        evaluation = Evaluation(gradient.problem, params, draw)
        return gradient.inner_products(evaluation, gradient.samples(evaluation, state))

    return jax.lax.map(group, keys, batch_size=100)


def expected_sq_norm(
    joint: Float[np.ndarray, "joint joint"], weights: Float[np.ndarray, "variate"], rows: list[int]
) -> float:
    r"""\(E\|h + Ca\|^2\) for the variates in some rows of a joint matrix."""
    direction = np.zeros(len(joint))
    direction[0] = 1.0
    direction[rows] = weights
    return float(direction @ joint @ direction)
