# SPDX-License-Identifier: Apache-2.0
"""The paper's experiment: logistic regression, full-rank Gaussian, momentum, 500 steps from N(0, I)."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree

from experiments.common.optimum import find_optimum
from quell.combine import Rule
from quell.core.compilation import quick_jit
from quell.evaluation import Problem, Sampler, exact_elbo
from quell.families import FullRank
from quell.gradient import Gradient
from quell.models import logistic_regression
from quell.paper.datasets import Dataset
from quell.paper.ensembles import variates

BATCH_SIZE = 10
MOMENTUM = 0.9
DECAY = 0.02
V0 = 1e-3
STEPS = 500
RECORD_EVERY = 10


def paper_problem(dataset: Dataset) -> Problem:
    """Logistic regression with a standard normal prior; a full-rank Gaussian with the entries of L as they are."""
    model = logistic_regression(dataset.features, dataset.labels)
    return Problem(model, FullRank(model.dim, log_scale=False, init_scale=1.0))


def paper_gradient(problem: Problem, names: str | Sequence[str]) -> Gradient:
    """The paper's base gradient with some of its variates: ten replicates of one datum each."""
    sampler = Sampler(num_replicates=BATCH_SIZE, batch_size=1)
    return Gradient(problem, variates(names), sampler=sampler, rule=Rule(decay=DECAY, v0=V0))


def paper_optimizer(learning_rate: float | Float[Array, ""]) -> optax.GradientTransformation:
    r"""Momentum as an average: \(v \leftarrow 0.9 v + 0.1 g\), \(w \leftarrow w + \mathrm{lr}\, v\)."""
    return optax.chain(optax.ema(MOMENTUM, debias=False), optax.scale(-1.0), optax.scale(learning_rate))


def optimum(dataset: Dataset) -> float:
    """The best ELBO that a full-rank Gaussian can reach, to double precision."""
    rows = dataset.labels[:, None] * dataset.features
    return find_optimum(_log_sigmoid, rows, np.ones(dataset.num_data)).elbo


def _log_sigmoid(predictor: Array, target: Array) -> Array:
    """Log likelihood of a datum whose label is folded into its features."""
    return jax.nn.log_sigmoid(predictor)


def elbo_curves(
    gradient: Gradient,
    *,
    learning_rates: Sequence[float],
    num_runs: int,
    num_steps: int = STEPS,
    record_every: int = RECORD_EVERY,
    seed: int = 0,
    optimizer: Callable[[Float[Array, ""]], optax.GradientTransformation] = paper_optimizer,
) -> Float[np.ndarray, "rate run record"]:
    """Exact ELBO along independent runs, all of them in one compiled program.

    Args:
        gradient: from `paper_gradient`.
        learning_rates: a run of its own for each.
        num_runs: for each learning rate; run k is the same whatever their number.
        num_steps: a multiple of `record_every`.
        record_every: steps between two records; the first is of the start.
        seed: of all runs; different learning rates see the same draws.
        optimizer: of a learning rate.

    Returns:
        The ELBO in nats; NaN once a run is not finite.
    """
    root = jax.random.key(seed)
    keys = jax.vmap(lambda k: jax.random.fold_in(root, k))(jnp.arange(num_runs))
    rates = jnp.asarray(learning_rates)
    curves = _curves(gradient, optimizer, rates, keys, num_steps // record_every, record_every)
    return np.asarray(curves, dtype=np.float64)


@quick_jit
def _curves(
    gradient: Gradient,
    optimizer: Callable[[Float[Array, ""]], optax.GradientTransformation],
    rates: Float[Array, "rate"],
    keys: Key[Array, "run"],
    num_records: int,
    record_every: int,
) -> Float[Array, "rate run record"]:
    def run(rate: Float[Array, ""], key: Key[Array, ""]) -> Float[Array, "record"]:
        return _curve(gradient, optimizer(rate), key, num_records, record_every)

    return jax.vmap(lambda rate: jax.vmap(lambda key: run(rate, key))(keys))(rates)


def _curve(
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    num_records: int,
    record_every: int,
) -> Float[Array, "record"]:
    problem = gradient.problem

    def step(carry: PyTree, step_key: Key[Array, ""]) -> tuple[PyTree, None]:
        params, optimizer_state, state = carry
        loss_grad, state, _ = gradient.update(step_key, params, state)
        updates, optimizer_state = optimizer.update(loss_grad, optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state, state), None

    def record(carry: PyTree, record_keys: Key[Array, "step"]) -> tuple[PyTree, Float[Array, ""]]:
        elbo = exact_elbo(problem, carry[0])
        return jax.lax.scan(step, carry, record_keys)[0], elbo

    params = problem.family.init()
    start = (params, optimizer.init(params), gradient.init(params))
    keys = jax.random.split(key, (num_records, record_every))
    end, curve = jax.lax.scan(record, start, keys)
    return jnp.concatenate([curve, exact_elbo(problem, end[0])[None]])
