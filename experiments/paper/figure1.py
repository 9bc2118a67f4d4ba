# SPDX-License-Identifier: Apache-2.0
"""The paper's figure 1: squared norm and variance of the gradient along one sequence of weights."""

import dataclasses
import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from experiments.common.experiment import AbstractExperiment
from experiments.paper import protocol
from experiments.paper.moments import FULL, expected_sq_norm, rows_of
from experiments.paper.sweep import COLUMNS
from quell.combine import MomentState, Rule
from quell.core.compilation import quick_jit
from quell.evaluation import Evaluation, Sampler, exact_elbo
from quell.gradient import Gradient
from quell.paper.datasets import Dataset

LEARNING_RATE = 0.1
NUM_BLOCKS = 10


@dataclasses.dataclass(frozen=True)
class Figure1:
    """Squared norm and variance of the gradient of the ELBO per datum, per evaluation of one datum.

    Attributes:
        dataset: name of the data set.
        steps: iterations at which the gradients were measured.
        sq_norm: expected squared norm, for each of `COLUMNS`, from independent blocks of evaluations.
        exact_sq_norm: squared norm of the exact gradient; the variance is what lies above it.
        evaluations: fresh ones for each record, in all blocks together.
        seconds: time taken, compilation included.
    """

    dataset: str
    steps: Int[np.ndarray, "record"]
    sq_norm: Float[np.ndarray, "column record block"]
    exact_sq_norm: Float[np.ndarray, "record"]
    evaluations: int
    seconds: float

    @property
    def variance(self) -> Float[np.ndarray, "column record block"]:
        """Trace of the gradient's covariance along the sequence."""
        return self.sq_norm - self.exact_sq_norm[:, None]

    def as_json(self) -> dict[str, Any]:
        """What goes into `figure1.json`."""
        rows = {"sq_norm": self.sq_norm.mean(axis=2), "variance": self.variance.mean(axis=2)}
        return {
            "dataset": self.dataset,
            "learning_rate": LEARNING_RATE,
            "followed": FULL,
            "evaluations": self.evaluations,
            "steps": self.steps.tolist(),
            "exact_sq_norm": self.exact_sq_norm.tolist(),
            **{name: dict(zip(COLUMNS, values.tolist(), strict=True)) for name, values in rows.items()},
            "seconds": round(self.seconds, 3),
        }


@dataclasses.dataclass(frozen=True)
class Figure1Experiment(AbstractExperiment[Figure1]):
    """Follow the paper's optimiser with all seven variates, and measure every ensemble where it passes.

    The moments of all ensembles are blocks of one matrix, so that every ensemble sees the same draws; its weights
    come from the lagged averages, as in a run of its own, and its squared norm from fresh evaluations.

    Attributes:
        dataset: to fit.
        num_steps: length of the sequence.
        num_evaluations: fresh ones for each of about sixty records.
        seed: of all draws.
    """

    result_type: ClassVar[type] = Figure1

    dataset: Dataset
    num_steps: int = 300
    num_evaluations: int = 2000
    seed: int = 0

    @property
    def name(self) -> str:
        return f"figure1 {self.dataset.name}"

    @property
    def seconds(self) -> float:
        return 18.0 + 1e-6 * self.num_evaluations * 60 * self.dataset.features.shape[1] ** 2

    def run(self) -> Figure1:
        began = time.perf_counter()
        every = max(1, self.num_steps // 60)
        gradient = protocol.paper_gradient(protocol.paper_problem(self.dataset), FULL)
        key = jax.random.key(self.seed)
        states, joints, exact = _follow(gradient, key, self.num_steps // every, every, self.num_evaluations)
        totals, masses, joints = np.asarray(states.total), np.asarray(states.mass), np.asarray(joints, np.float64)
        sq_norm = []
        for column in COLUMNS:
            rows = rows_of(column)
            weights = [_weights(gradient, t, m, rows) for t, m in zip(totals, masses, strict=True)]
            sq_norm.append(
                [
                    [expected_sq_norm(joint, w, rows) for joint in blocks]
                    for blocks, w in zip(joints, weights, strict=True)
                ]
            )
        steps = every * np.arange(len(joints))
        exact = np.asarray(exact, np.float64)
        seconds = time.perf_counter() - began
        return Figure1(self.dataset.name, steps, np.array(sq_norm), exact, self.num_evaluations, seconds)


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
) -> tuple[MomentState, Float[Array, "record block joint joint"], Float[Array, "record"]]:
    """Averages seen so far, fresh moments and the exact gradient's squared norm at each record."""
    problem = gradient.problem
    optimizer = protocol.paper_optimizer(LEARNING_RATE)
    sampler = Sampler(num_replicates=num_evaluations // NUM_BLOCKS, batch_size=1)

    def step(carry: PyTree, step_key: Key[Array, ""]) -> tuple[PyTree, None]:
        params, optimizer_state, state = carry
        loss_grad, state, _ = gradient.update(step_key, params, state)
        updates, optimizer_state = optimizer.update(loss_grad, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state, state), None

    def record(carry: PyTree, keys: Key[Array, "step"]) -> tuple[PyTree, PyTree]:
        params, _, state = carry
        dtype = jnp.result_type(*jax.tree.leaves(params))

        def block(fresh: Key[Array, ""]) -> Float[Array, "joint joint"]:
            draw = sampler.draw(fresh, problem.family, problem.model.num_data, dtype)
            evaluation = Evaluation(problem, params, draw)
            return gradient.inner_products(evaluation, gradient.samples(evaluation, state))

        joint = jax.lax.map(block, jax.random.split(jax.random.fold_in(keys[0], 1), NUM_BLOCKS))
        exact = jax.grad(lambda w: exact_elbo(problem, w) / problem.model.num_data)(params)
        sq_norm = sum(jnp.sum(jnp.square(leaf)) for leaf in (exact.loc, jnp.tril(exact.scale)))
        return jax.lax.scan(step, carry, keys)[0], (state.moments, joint, sq_norm)

    params = problem.family.init()
    start = (params, optimizer.init(params), gradient.init(params))
    return jax.lax.scan(record, start, jax.random.split(key, (num_records, record_every)))[1]
