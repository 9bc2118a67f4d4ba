# SPDX-License-Identifier: Apache-2.0
"""The paper's figure 4: how the squared norm depends on the prior's strength and the number of evaluations."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from quell.combine import Moments, NormalWishart, isotropic, solve
from quell.compilation import quick_jit
from quell.fitting import Gradient
from quell.paper import protocol
from quell.paper.datasets import Dataset
from quell.paper.moments import FULL, expected_sq_norm, joint_moments, rows_of
from quell.problem import Problem, exact_elbo

LEARNING_RATE = 0.08
STEPS = 25
LAG = 10
GROUP = 10
SAMPLE_SIZES = (10, 20, 50, 100, 200)
STRENGTHS = tuple(float(v) for v in np.logspace(-8, 2, 21))


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of the figure.

    Attributes:
        dataset: name of the data set.
        lag: iterations between the weights where the moments were taken and those where they are used.
        strengths: values of v0.
        sq_norm: expected squared norm for each number of evaluations and each v0, averaged over repetitions.
        base_sq_norm: that of the base gradient.
        best_sq_norm: with the weights of lemma 4.1, from all evaluations together.
        repetitions: of the whole procedure.
    """

    dataset: str
    lag: int
    strengths: list[float]
    sq_norm: dict[int, list[float]]
    base_sq_norm: float
    best_sq_norm: float
    repetitions: int

    def as_json(self) -> dict[str, Any]:
        """One entry of `figure4.json`."""
        return dataclasses.asdict(self)


def artificial_dataset(*, num_data: int = 100, seed: int = 0) -> Dataset:
    """Two overlapping clouds in the plane."""
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(num_data) % 2 == 0, 1.0, -1.0)
    features = rng.normal(size=(num_data, 2)) + 0.7 * labels[:, None] * np.array([1.0, 0.5])
    return Dataset("2D", features, labels)


def run_panel(dataset: Dataset, *, lag: int = 0, repetitions: int = 200, seed: int = 0) -> Panel:
    """Estimate the weights from M evaluations, use them on fresh ones, and average over repetitions.

    Args:
        dataset: to fit.
        lag: take the moments at the weights of this many iterations earlier.
        repetitions: for each M.
        seed: of all evaluations.
    """
    gradient = protocol.paper_gradient(protocol.paper_problem(dataset), FULL)
    trajectory = _descend(gradient.problem)
    now, then = (jax.tree.map(lambda leaf, k=k: leaf[k], trajectory) for k in (STEPS, STEPS - lag))
    fresh_key, seen_key = jax.random.split(jax.random.key(seed))
    num_groups = repetitions * max(SAMPLE_SIZES) // GROUP
    fresh = _joints(gradient, now, fresh_key, num_groups).mean(axis=0)
    seen = _joints(gradient, then, seen_key, num_groups)
    sq_norm = {size: _curve(gradient, seen, fresh, size, repetitions) for size in SAMPLE_SIZES}
    best = _weights(gradient, fresh[None], 0.0, len(seen) * GROUP)[0]
    rows = rows_of(FULL)
    best_sq_norm = expected_sq_norm(fresh, best, rows)
    return Panel(dataset.name, lag, list(STRENGTHS), sq_norm, float(fresh[0, 0]), best_sq_norm, repetitions)


def _joints(gradient: Gradient, params: PyTree, key: Array, num_groups: int) -> Float[np.ndarray, "group joint joint"]:
    return np.asarray(joint_moments(gradient, params, jax.random.split(key, num_groups), GROUP), np.float64)


def _curve(
    gradient: Gradient,
    seen: Float[np.ndarray, "group joint joint"],
    fresh: Float[np.ndarray, "joint joint"],
    size: int,
    repetitions: int,
) -> list[float]:
    """Average squared norm against the strength of the prior, for moments of `size` evaluations."""
    groups = size // GROUP
    averages = seen[: repetitions * groups].reshape(repetitions, groups, *seen.shape[1:]).mean(axis=1)
    rows = rows_of(FULL)
    return [
        float(np.mean([expected_sq_norm(fresh, w, rows) for w in _weights(gradient, averages, v0, size)]))
        for v0 in STRENGTHS
    ]


def _weights(
    gradient: Gradient, averages: Float[np.ndarray, "repetition joint joint"], v0: float, size: int
) -> Float[np.ndarray, "repetition variate"]:
    num_variates = averages.shape[-1] - 1
    dtype = jnp.asarray(averages).dtype
    prior = isotropic(v0, num_params=gradient.problem.family.num_params, num_variates=num_variates, dtype=dtype)
    moments = jax.vmap(Moments.from_joint)(jnp.asarray(averages))
    return np.asarray(_solve_all(prior.gram, prior.cross, moments, jnp.asarray(float(size), dtype)))


@jax.jit
def _solve_all(gram: Array, cross: Array, moments: Moments, size: Array) -> Array:
    return jax.vmap(lambda average: solve(NormalWishart(gram, cross), average, size))(moments)


@quick_jit
def _descend(problem: Problem) -> PyTree:
    """Parameters along the paper's optimiser on the exact gradient, the start included."""
    optimizer = protocol.paper_optimizer(LEARNING_RATE)
    grad = jax.grad(lambda w: -exact_elbo(problem, w) / problem.model.num_data)

    def step(carry: PyTree, _: None) -> tuple[PyTree, PyTree]:
        params, state = carry
        updates, state = optimizer.update(grad(params), state)
        return (optax.apply_updates(params, updates), state), params

    params = problem.family.init()
    (last, _), path = jax.lax.scan(step, (params, optimizer.init(params)), None, length=STEPS)
    return jax.tree.map(lambda p, end: jnp.concatenate([p, end[None]]), path, last)
