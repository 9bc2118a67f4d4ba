# SPDX-License-Identifier: Apache-2.0
"""Exact expectations: a draw whose replicates are all quadrature nodes times all minibatches."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from quell.evaluation import Draw, Evaluation, Problem
from quell.families.factored import FactoredGradient

NUM_NODES = 26


def gauss_hermite(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a standard normal in `dim` dimensions."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NUM_NODES)
    weights = weights / weights.sum()
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    mass = np.prod(np.array(list(itertools.product(weights, repeat=dim))), axis=1)
    return grid, mass


def minibatches(num_data: int, size: int | None, *, replace: bool) -> np.ndarray | None:
    """All minibatches of a size, equally likely; `None` for the full data."""
    if size is None:
        return None
    if replace:
        return np.array(list(itertools.product(range(num_data), repeat=size)))
    return np.array(list(itertools.combinations(range(num_data), size)))


def exact_draw(problem: Problem, size: int | None, *, replace: bool = False) -> tuple[Draw, jax.Array]:
    """A draw of all noise nodes times all minibatches, and the probability of each replicate."""
    nodes, mass = gauss_hermite(problem.family.dim)
    batches = minibatches(problem.model.num_data, size, replace=replace)
    if batches is None:
        return Draw(jnp.asarray(nodes), None), jnp.asarray(mass)
    noise = np.repeat(nodes, len(batches), axis=0)
    index = np.tile(batches, (len(nodes), 1))
    weights = np.repeat(mass, len(batches)) / len(batches)
    return Draw(jnp.asarray(noise), jnp.asarray(index)), jnp.asarray(weights)


def expectation(parts: FactoredGradient, evaluation: Evaluation, mass: jax.Array) -> Any:
    """The exact expectation of a sample taken at an exact draw, parameter-shaped."""
    dense = evaluation.algebra.dense(parts)
    return jax.tree.map(lambda leaf: jnp.tensordot(mass, leaf, axes=1), dense)


def expected_value(function: Callable[[jax.Array], jax.Array], problem: Problem, params: Any) -> jax.Array:
    """The expectation of a function of the latent under q, by quadrature through the default transport."""
    nodes, mass = gauss_hermite(problem.family.dim)
    transport = problem.family.transports[0]
    latents = problem.family.algebra(params, jnp.asarray(nodes)).latents(transport)
    return jnp.tensordot(jnp.asarray(mass), jax.vmap(function)(latents), axes=1)
