# SPDX-License-Identifier: Apache-2.0
"""The paper's figure 4: how the squared norm depends on the prior's strength and the number of evaluations."""

import dataclasses
import time
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from experiments.common.experiment import AbstractExperiment
from experiments.paper import protocol
from experiments.paper.moments import FULL, expected_sq_norm, joint_moments, rows_of
from quell.combine import Moments, NormalWishart, isotropic, solve
from quell.core.compilation import quick_jit
from quell.evaluation import Problem, exact_elbo
from quell.gradient import Gradient
from quell.paper.datasets import Dataset

LEARNING_RATE = 0.08
STEPS = 25
LAG = 10
GROUP = 2
SAMPLE_SIZES = (2, 6, 10, 30, 100)
STRENGTHS = tuple(float(v) for v in np.logspace(-8, 2, 21))


@dataclasses.dataclass(frozen=True)
class Panel:
    """One panel of the figure.

    Attributes:
        dataset: name of the data set.
        lag: iterations between the weights where the moments were taken and those where they are used.
        sq_norm: expected squared norm for each number of evaluations, each v0 and each repetition.
        base_sq_norm: that of the base gradient.
        best_sq_norm: with the weights of lemma 4.1, from all evaluations together.
        seconds: time taken, compilation included.
    """

    dataset: str
    lag: int
    sq_norm: Float[np.ndarray, "size strength repetition"]
    base_sq_norm: float
    best_sq_norm: float
    seconds: float

    @property
    def mean(self) -> Float[np.ndarray, "size strength"]:
        """Average over the repetitions."""
        return self.sq_norm.mean(axis=2)

    def as_json(self) -> dict[str, Any]:
        """One entry of `figure4.json`."""
        errors = self.sq_norm.std(axis=2, ddof=1) / np.sqrt(self.sq_norm.shape[2])
        return {
            "dataset": self.dataset,
            "lag": self.lag,
            "sizes": list(SAMPLE_SIZES),
            "strengths": list(STRENGTHS),
            "repetitions": self.sq_norm.shape[2],
            "sq_norm": self.mean.tolist(),
            "sq_norm_stderr": errors.tolist(),
            "base_sq_norm": self.base_sq_norm,
            "best_sq_norm": self.best_sq_norm,
            "seconds": round(self.seconds, 3),
        }


def artificial_dataset(*, num_data: int = 100, seed: int = 0) -> Dataset:
    """Two overlapping clouds in the plane."""
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(num_data) % 2 == 0, 1.0, -1.0)
    features = rng.normal(size=(num_data, 2)) + 0.7 * labels[:, None] * np.array([1.0, 0.5])
    return Dataset("2D", features, labels)


@dataclasses.dataclass(frozen=True)
class PanelExperiment(AbstractExperiment[Panel]):
    """Estimate the weights from M evaluations, use them on fresh ones, and repeat.

    Attributes:
        dataset: to fit.
        lag: take the moments at the weights of this many iterations earlier.
        repetitions: for each M; at least two.
        seed: of all evaluations.
    """

    result_type: ClassVar[type] = Panel

    dataset: Dataset
    lag: int = 0
    repetitions: int = 200
    seed: int = 0

    @property
    def name(self) -> str:
        return f"figure4 {self.dataset.name} lag {self.lag}"

    @property
    def seconds(self) -> float:
        return 12.0 + 2e-6 * self.repetitions * max(SAMPLE_SIZES) * self.dataset.features.shape[1] ** 2

    def run(self) -> Panel:
        began = time.perf_counter()
        gradient = protocol.paper_gradient(protocol.paper_problem(self.dataset), FULL)
        trajectory = _descend(gradient.problem)
        now, then = (jax.tree.map(lambda leaf, k=k: leaf[k], trajectory) for k in (STEPS, STEPS - self.lag))
        fresh_key, seen_key = jax.random.split(jax.random.key(self.seed))
        num_groups = self.repetitions * max(SAMPLE_SIZES) // GROUP
        fresh = _joints(gradient, now, fresh_key, num_groups).mean(axis=0)
        seen = _joints(gradient, then, seen_key, num_groups)
        sq_norm = np.stack([_curve(gradient, seen, fresh, size, self.repetitions) for size in SAMPLE_SIZES])
        best = _weights(gradient, fresh[None], 0.0, len(seen) * GROUP)[0]
        best_sq_norm = expected_sq_norm(fresh, best, rows_of(FULL))
        seconds = time.perf_counter() - began
        return Panel(self.dataset.name, self.lag, sq_norm, float(fresh[0, 0]), best_sq_norm, seconds)


def figure4_experiments(dataset: Dataset, **options: Any) -> list[PanelExperiment]:
    """The three panels: an artificial data set, another, and the other with old moments."""
    return [
        PanelExperiment(data, lag=lag, **options)
        for data, lag in ((artificial_dataset(), 0), (dataset, 0), (dataset, LAG))
    ]


def _joints(gradient: Gradient, params: PyTree, key: Array, num_groups: int) -> Float[np.ndarray, "group joint joint"]:
    return np.asarray(joint_moments(gradient, params, jax.random.split(key, num_groups), GROUP), np.float64)


def _curve(
    gradient: Gradient,
    seen: Float[np.ndarray, "group joint joint"],
    fresh: Float[np.ndarray, "joint joint"],
    size: int,
    repetitions: int,
) -> Float[np.ndarray, "strength repetition"]:
    """Squared norm against the strength of the prior, for moments of `size` evaluations."""
    groups = size // GROUP
    averages = seen[: repetitions * groups].reshape(repetitions, groups, *seen.shape[1:]).mean(axis=1)
    rows = rows_of(FULL)
    return np.array(
        [[expected_sq_norm(fresh, w, rows) for w in _weights(gradient, averages, v0, size)] for v0 in STRENGTHS]
    )


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
