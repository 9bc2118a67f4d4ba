# SPDX-License-Identifier: Apache-2.0
"""The paper's figure 1: how quiet each ensemble is along one and the same sequence of weights."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from quell.combine import MomentState, Rule
from quell.compilation import quick_jit
from quell.draw import Sampler
from quell.evaluation import Evaluation
from quell.fitting import Gradient
from quell.paper import protocol
from quell.paper.datasets import Dataset
from quell.paper.moments import FULL, expected_sq_norm, rows_of
from quell.paper.sweep import COLUMNS
from quell.problem import exact_elbo

LEARNING_RATE = 0.1
NUM_EVALUATIONS = 2000


@dataclasses.dataclass(frozen=True)
class Figure1:
    """Squared norm and variance of the gradient of the ELBO a datum, per evaluation of one datum.

    Attributes:
        dataset: name of the data set.
        steps: iterations at which the gradients were measured.
        sq_norm: expected squared norm, for each ensemble.
        exact_sq_norm: squared norm of the exact gradient; the variance is what lies above it.
        settings: of the experiment.
    """

    dataset: str
    steps: list[int]
    sq_norm: dict[str, list[float]]
    exact_sq_norm: list[float]
    settings: dict[str, Any]

    def variance(self, column: str) -> Float[np.ndarray, "record"]:
        """Trace of the gradient's covariance along the sequence."""
        return np.array(self.sq_norm[column]) - np.array(self.exact_sq_norm)

    def as_json(self) -> dict[str, Any]:
        """What goes into `figure1.json`."""
        variances = {column: self.variance(column).tolist() for column in self.sq_norm}
        return {**dataclasses.asdict(self), "variance": variances}


def run_figure1(
    dataset: Dataset, *, num_steps: int = 300, num_evaluations: int = NUM_EVALUATIONS, seed: int = 0
) -> Figure1:
    """Follow the paper's optimiser with all seven variates, and measure every ensemble where it passes.

    The moments of all ensembles are blocks of one matrix, so that every ensemble sees the same draws; its weights
    come from the lagged averages, as in a run of its own, and its squared norm from fresh evaluations.
    """
    record_every = max(1, num_steps // 60)
    gradient = protocol.paper_gradient(protocol.paper_problem(dataset), FULL)
    key = jax.random.key(seed)
    states, joints, exact = _follow(gradient, key, num_steps // record_every, record_every, num_evaluations)
    totals, masses, joints = np.asarray(states.total), np.asarray(states.mass), np.asarray(joints, np.float64)
    sq_norm: dict[str, list[float]] = {}
    for column in COLUMNS:
        rows = rows_of(column)
        weights = [_weights(gradient, t, m, rows) for t, m in zip(totals, masses, strict=True)]
        sq_norm[column] = [expected_sq_norm(j, w, rows) for j, w in zip(joints, weights, strict=True)]
    settings = {"learning_rate": LEARNING_RATE, "evaluations": num_evaluations, "seed": seed, "followed": FULL}
    steps = [k * record_every for k in range(len(joints))]
    return Figure1(dataset.name, steps, sq_norm, np.asarray(exact, np.float64).tolist(), settings)


def _weights(
    gradient: Gradient, total: Float[np.ndarray, "j j"], mass: Float[np.ndarray, "j j"], rows: list[int]
) -> Float[np.ndarray, "variate"]:
    block = np.ix_([0, *rows], [0, *rows])
    some = MomentState(jnp.asarray(total[block]), jnp.asarray(mass[block]))
    rule: Rule = gradient.rule
    num_params = gradient.problem.family.num_params
    return np.asarray(rule.weights(some, num_units=gradient.sampler.num_units, num_params=num_params))


@quick_jit
def _follow(
    gradient: Gradient, key: Key[Array, ""], num_records: int, record_every: int, num_evaluations: int
) -> tuple[MomentState, Float[Array, "record joint joint"], Float[Array, "record"]]:
    """Averages seen so far, fresh moments and the exact gradient's squared norm at each record."""
    problem = gradient.problem
    optimizer = protocol.paper_optimizer(LEARNING_RATE)
    sampler = Sampler(num_replicates=num_evaluations, batch_size=1)

    def step(carry: PyTree, step_key: Key[Array, ""]) -> tuple[PyTree, None]:
        params, optimizer_state, state = carry
        loss_grad, state, _ = gradient.update(step_key, params, state)
        updates, optimizer_state = optimizer.update(loss_grad, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state, state), None

    def record(carry: PyTree, keys: Key[Array, "step"]) -> tuple[PyTree, PyTree]:
        params, _, state = carry
        fresh = jax.random.fold_in(keys[0], 1)
        dtype = jnp.result_type(*jax.tree.leaves(params))
        draw = sampler.draw(fresh, problem.family, problem.model.num_data, dtype)
        evaluation = Evaluation(problem, params, draw)
        joint = gradient.inner_products(evaluation, gradient.samples(evaluation, state))
        exact = jax.grad(lambda w: exact_elbo(problem, w) / problem.model.num_data)(params)
        sq_norm = sum(jnp.sum(jnp.square(leaf)) for leaf in (exact.loc, jnp.tril(exact.scale)))
        return jax.lax.scan(step, carry, keys)[0], (state.moments, joint, sq_norm)

    params = problem.family.init()
    start = (params, optimizer.init(params), gradient.init(params))
    return jax.lax.scan(record, start, jax.random.split(key, (num_records, record_every)))[1]
