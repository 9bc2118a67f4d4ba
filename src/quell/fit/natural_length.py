# SPDX-License-Identifier: Apache-2.0
"""How long a gradient is in the metric of the family."""

import jax
from jaxtyping import Array, Float, PyTree

from quell.evaluation import Problem
from quell.fit.natural_gradient import geometry_of


def natural_sq_norm(problem: Problem, params: PyTree, loss_grad: PyTree) -> Float[Array, ""]:
    r"""\(g^\top F^{-1} g\) in nats, of a gradient of the loss \(-\mathrm{ELBO}/N\): twice what a step could gain."""
    geometry = geometry_of(problem.family)
    ascent = jax.tree.map(lambda leaf: -problem.model.num_data * leaf, loss_grad)
    return geometry.sq_norm(params, geometry.direction(params, ascent))
