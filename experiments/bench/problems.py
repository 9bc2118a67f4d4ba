# SPDX-License-Identifier: Apache-2.0
"""The benchmark's problems: each as a model of quell and as a NumPyro model of the same density."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from experiments.bench import models
from quell import adapters
from quell.core.checks import check_name
from quell.evaluation import Problem, has_exact_elbo
from quell.families import AbstractFamily, FullRank, MeanField
from quell.models import AbstractModel, logistic_regression, poisson_regression
from quell.models.linear_data import LinearData
from quell.paper import load

DataDir = str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True, eq=False)
class BenchProblem:
    """A model with a Gaussian family, and how long a run may take.

    Attributes:
        name: for tables and files.
        problem: for quell, and for the ELBO.
        numpyro_model: the same density; called with rows and `num_data`.
        rows: its data, as positional arguments.
        batch_size: of methods that take minibatches.
        limit: most seconds of a run.
        start: the mean that every run of every method starts from.
    """

    name: str
    problem: Problem
    numpyro_model: models.NumPyroFunction
    rows: tuple[Array, ...]
    batch_size: int
    limit: float
    start: Float[Array, "latent"]

    @property
    def num_data(self) -> int:
        """Rows in the data."""
        return self.problem.model.num_data

    @property
    def dim(self) -> int:
        """Coordinates of the flat latent."""
        return self.problem.model.dim

    @property
    def model_and_family(self) -> tuple[AbstractModel, AbstractFamily]:
        """Of the problem."""
        return self.problem.model, self.problem.family

    @property
    def full_rank(self) -> bool:
        """Whether the family has all correlations."""
        return isinstance(self.problem.family, FullRank)

    @property
    def is_exact(self) -> bool:
        """Whether the ELBO is known without sampling."""
        return has_exact_elbo(self.problem)

    def log_joint(self, z: Float[Array, "latent"], rows: Any) -> Float[Array, ""]:
        """Log joint density at a flat latent, estimated from some rows of quell's data, or exact from all of them."""
        model = self.problem.model
        values = model.log_likelihood(z, rows)
        return self.num_data / values.shape[0] * jnp.sum(values) + model.prior.log_prob(z)


def make_problem(name: str, *, data_dir: DataDir = None) -> BenchProblem:
    """Build a problem by name.

    Args:
        name: one of `NAMES`.
        data_dir: where `australian.csv` lies.

    Raises:
        DatasetUnavailable: for `australian` without its data.
    """
    check_name("The problem", name, NAMES)
    return _MAKERS[name](name, data_dir)


def _paper(name: str, data_dir: DataDir) -> BenchProblem:
    data = load(name, data_dir=data_dir)
    return _logistic(name, logistic_regression(data.features, data.labels), full_rank=True)


def _simulated_logistic(
    num_data: int, dim: int, full_rank: bool, batch_size: int, limit: float, name: str, data_dir: DataDir
) -> BenchProblem:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((num_data, dim), dtype=np.float32)
    features[:, -1] = 1.0
    predictor = features @ rng.normal(scale=1.0 / np.sqrt(dim), size=dim).astype(np.float32)
    labels = rng.random(num_data) < 1.0 / (1.0 + np.exp(-predictor))
    model = logistic_regression(features, labels)
    return _logistic(name, model, full_rank=full_rank, batch_size=batch_size, limit=limit)


def _logistic(
    name: str, model: AbstractModel, *, full_rank: bool, batch_size: int = 100, limit: float = 8.0
) -> BenchProblem:
    rows = (model.data.features, model.data.targets)
    start = jnp.zeros(model.dim)
    return BenchProblem(name, _problem(model, full_rank), models.logistic, rows, batch_size, limit, start)


def _poisson(name: str, data_dir: DataDir) -> BenchProblem:
    rng = np.random.default_rng(1)
    features = np.column_stack([0.5 * rng.normal(size=(2000, 19)), np.ones(2000)])
    counts = rng.poisson(np.exp(features @ np.append(0.3 * rng.normal(size=19), 0.7)))
    model = poisson_regression(features, counts)
    assert isinstance(model.data, LinearData), "given in memory"
    rows = (model.data.features, model.data.targets)
    return BenchProblem(name, _problem(model, True), models.poisson, rows, 100, 8.0, jnp.zeros(20))


def _hierarchical(name: str, data_dir: DataDir) -> BenchProblem:
    rng = np.random.default_rng(2)
    group = np.sort(np.concatenate([np.arange(models.GROUPS), rng.geometric(0.03, size=834) % models.GROUPS]))
    floor = (rng.random(919) < 0.2).astype(float)
    level = (1.5 + 0.4 * rng.normal(size=models.GROUPS))[group] - 0.7 * floor + 0.75 * rng.normal(size=919)
    rows = (jnp.asarray(group), jnp.asarray(floor), jnp.asarray(level))
    return from_numpyro(name, models.hierarchical, rows, full_rank=True)


def _network(name: str, data_dir: DataDir) -> BenchProblem:
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-2, 2, size=(300, 2))
    targets = np.sin(1.5 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.3 * rng.normal(size=300)
    bench = from_numpyro(name, models.network, (jnp.asarray(inputs), jnp.asarray(targets)), full_rank=True)
    return dataclasses.replace(bench, start=mode_of(bench), limit=20.0)


def from_numpyro(
    name: str, function: models.NumPyroFunction, rows: tuple[Array, ...], *, full_rank: bool
) -> BenchProblem:
    """A problem from a NumPyro model with a plate `data`, started at zero."""
    model = adapters.from_numpyro(function, *rows, num_data=rows[0].shape[0], plate="data")
    return BenchProblem(name, _problem(model, full_rank), function, rows, 100, 8.0, jnp.zeros(model.dim))


def mode_of(bench: BenchProblem, *, steps: int = 2000) -> Float[Array, "latent"]:
    """A mode of the density, found from one random point: a network has many, and all runs start at the same one."""
    optimizer = optax.adam(optax.cosine_decay_schedule(0.05, steps))
    slope = jax.grad(lambda z: -bench.log_joint(z, bench.problem.model.data))

    def step(carry: Any, _: None) -> tuple[Any, None]:
        z, state = carry
        updates, state = optimizer.update(slope(z), state)
        return (optax.apply_updates(z, updates), state), None

    z = 0.5 * jax.random.normal(jax.random.key(0), (bench.dim,))
    (z, _), _ = jax.jit(lambda begin: jax.lax.scan(step, begin, None, length=steps))((z, optimizer.init(z)))
    return z


def _problem(model: AbstractModel, full_rank: bool) -> Problem:
    return Problem(model, FullRank(model.dim) if full_rank else MeanField(model.dim))


_MAKERS: dict[str, Callable[[str, DataDir], BenchProblem]] = {
    "australian": _paper,
    "sonar": _paper,
    "ionosphere-full": _paper,
    "poisson": _poisson,
    "hierarchical": _hierarchical,
    "network": _network,
    "million": functools.partial(_simulated_logistic, 1_000_000, 100, True, 1000, 30.0),
    "million-meanfield": functools.partial(_simulated_logistic, 1_000_000, 100, False, 1000, 30.0),
    "d500": functools.partial(_simulated_logistic, 20_000, 500, True, 100, 20.0),
}

NAMES = tuple(_MAKERS)
DEFAULT_NAMES = tuple(name for name in NAMES if name != "d500")
