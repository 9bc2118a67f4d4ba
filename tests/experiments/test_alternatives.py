# SPDX-License-Identifier: Apache-2.0
"""Other readings of the paper's text: every job has a gradient that can take a step."""

import jax
import numpy as np
import pytest

from experiments.paper import alternatives
from quell.paper import Dataset

ROWS = np.random.default_rng(0).uniform(-1, 1, (12, 2))
SMALL = Dataset("small", np.column_stack([ROWS, np.ones(12)]), np.tile([-1.0, 1.0], 6))
JOBS = alternatives.all_jobs([SMALL], [SMALL], num_runs=1)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=[f"{job.change.name}-{job.column}" for job in JOBS])
def test_a_step_of_every_job(job):
    gradient = alternatives.gradient(job)
    params = gradient.problem.family.init()
    state = gradient.init(params)
    loss_grad, after, info = jax.eval_shape(gradient.update, jax.random.key(0), params, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert info.weights.shape == (len(alternatives.ensemble(job)),)
    optimizer = job.change.optimizer(0.1)
    jax.eval_shape(optimizer.update, loss_grad, optimizer.init(params))


def test_random_halves_are_scaled_on_their_own_rows():
    (half,) = alternatives.random_halves(1)
    assert half.num_data == 176
    assert set(half.features.max(0)) <= {0.0, 1.0}
