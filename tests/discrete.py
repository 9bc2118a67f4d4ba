# SPDX-License-Identifier: Apache-2.0
"""Exact expectations for discrete families: enumeration, and nodes for their relaxations."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from quell.evaluation import Draw, Evaluation, Problem
from quell.families import AbstractDiscreteFamily

NUM_NODES = 44


def unit_interval(num: int = NUM_NODES) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on (0, 1) by the double-exponential rule, which does not mind what happens at the ends."""
    step = 6.2 / num
    t = step * (np.arange(num) - (num - 1) / 2)
    inner = 0.5 * math.pi * np.sinh(t)
    nodes = 1.0 / (1.0 + np.exp(-2.0 * inner))
    weights = step * 0.5 * math.pi * np.cosh(t) / (2.0 * np.cosh(inner) ** 2)
    return nodes, weights / weights.sum()


def uniform_grid(dim: int, num: int) -> tuple[jax.Array, jax.Array]:
    """Nodes and weights of uniform numbers in several dimensions."""
    return _grid(*unit_interval(num), dim)


def _grid(nodes, weights, dim):
    grid = np.stack(np.meshgrid(*[nodes] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    mass = np.prod(np.stack(np.meshgrid(*[weights] * dim, indexing="ij"), axis=-1).reshape(-1, dim), axis=1)
    return jnp.asarray(grid), jnp.asarray(mass)


def noise_for(family: AbstractDiscreteFamily, params, hidden) -> jax.Array:
    """The uniform noise that leads to a hidden variable: its distribution function."""
    if params.logits.ndim == 1:
        return jax.nn.sigmoid(hidden - params.logits)
    return jnp.exp(-jnp.exp(-(hidden - jax.nn.log_softmax(params.logits).ravel())))


def enumerated(family: AbstractDiscreteFamily, params, *, num: int = 1) -> tuple[jax.Array, jax.Array]:
    """One row of noise for each value (and each node of the second half of the noise), with its probability."""
    nodes, weights = unit_interval(num) if num > 1 else (np.array([0.5]), np.array([1.0]))
    grid, mass = _grid(nodes, weights, family.dim)
    rows, masses = [], []
    for value in family.support():
        probability = jnp.exp(family.log_prob(params, value))
        half = jnp.full(2 * family.dim, 0.5)
        first = noise_for(family, params, family.hidden_given(params, value, half))
        rows.append(jnp.concatenate([jnp.broadcast_to(first, grid.shape), grid], axis=1))
        masses.append(probability * mass)
    return jnp.concatenate(rows), jnp.concatenate(masses)


def relaxed_nodes(family: AbstractDiscreteFamily, params, *, num: int = NUM_NODES) -> tuple[jax.Array, jax.Array]:
    """Noise whose first half runs over all hidden variables: each value, and all hidden variables that lead to it."""
    rows, mass = enumerated(family, params, num=num)

    def move(noise):
        sample = family.harden(family.hidden(params, noise))
        first = noise_for(family, params, family.hidden_given(params, sample, noise))
        return jnp.concatenate([first, noise[family.dim :]])

    return jax.vmap(move)(rows), mass


def evaluation_at(problem: Problem, params, noise, mass, size: int | None):
    """All noise rows times all minibatches of a size."""
    if size is None:
        return Evaluation(problem, params, Draw(noise, None)), mass
    batches = np.array(list(itertools.combinations(range(problem.model.num_data), size)))
    rows = jnp.repeat(noise, len(batches), axis=0)
    index = jnp.tile(jnp.asarray(batches), (len(noise), 1))
    return Evaluation(problem, params, Draw(rows, index)), jnp.repeat(mass, len(batches)) / len(batches)
