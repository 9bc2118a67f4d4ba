# SPDX-License-Identifier: Apache-2.0
"""Closed forms of quadratics, through the family's moments."""

from collections.abc import Callable

from quell.evaluation import Batch, Evaluation
from quell.parts import Parts
from quell.quadratic import Quadratic


def expected_grad(evaluation: Evaluation, quadratic: Callable[[Batch], Quadratic], *, full_data: bool) -> Parts:
    r"""\(\nabla_w E_{q_w}\) of the quadratic that a batch defines; per replicate where batches differ."""
    per_sample = evaluation.has_batch_axis(full_data=full_data)
    quadratics = evaluation.map_batches(quadratic, full_data=full_data)
    return evaluation.particles.expected_quadratic_grad(quadratics, per_sample=per_sample)
