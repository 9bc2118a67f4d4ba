# SPDX-License-Identifier: Apache-2.0
"""Exact expectations: quadrature and enumeration in place of sampling.

A draw whose replicates are all nodes of the noise times all minibatches has exact expectations. The gradients that
estimators are held against come from integrals over the latent, which see densities only. So neither can hide an
error of the other.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from quell.evaluation import Draw, Evaluation, Problem
from quell.families import SAMPLE, AbstractDiscreteFamily, AbstractFamily, FactoredGradient
from quell.terms import AbstractTerm


class Rule(NamedTuple):
    """A quadrature: one node per row, and their weights."""

    nodes: Any
    weights: Any

    def __mul__(self, other: "Rule") -> "Rule":
        """All nodes of the one with all nodes of the other."""
        rows = [np.concatenate(pair) for pair in itertools.product(np.asarray(self.nodes), np.asarray(other.nodes))]
        return Rule(np.array(rows), np.outer(self.weights, other.weights).ravel())

    def power(self, dim: int) -> "Rule":
        """The same in several dimensions."""
        found = self
        for _ in range(dim - 1):
            found = found * self
        return found


def gauss_hermite(num: int) -> Rule:
    """For a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num)
    return Rule(nodes[:, None], weights / weights.sum())


def unit_interval(num: int) -> Rule:
    """The tanh-sinh rule on (0, 1): logarithms at the ends do it no harm."""
    s = np.linspace(-3.1, 3.1, num)
    u, v = scipy.special.expit(np.pi * np.sinh(s)), scipy.special.expit(-np.pi * np.sinh(s))
    weights = (s[1] - s[0]) * np.pi * np.cosh(s) * u * v
    return Rule(u[:, None], weights)


def half_line(num: int) -> Rule:
    """The double exponential rule on (0, inf), for what has an exponential tail."""
    s = np.linspace(-4.0, 4.0, num)
    z = np.exp(s - np.exp(-s))
    return Rule(z[:, None], (s[1] - s[0]) * z * (1.0 + np.exp(-s)))


def gaussian_plane(loc: np.ndarray, covariance: np.ndarray, num: int) -> Rule:
    """A rule for integrals over latents that suits a Gaussian."""
    white = gauss_hermite(num).power(len(loc))
    root = np.linalg.cholesky(covariance)
    density = np.exp(-0.5 * np.sum(white.nodes**2, axis=1)) / np.prod(np.diagonal(root)) / (2 * np.pi) ** (len(loc) / 2)
    return Rule(np.asarray(loc) + white.nodes @ root.T, white.weights / density)


def enumeration(family: AbstractDiscreteFamily, params: Any, num: int = 1) -> Rule:
    """Noise for each value of a discrete family and each node of the second half of the noise."""
    second = unit_interval(num).power(family.dim) if num > 1 else Rule(np.full((1, family.dim), 0.5), np.ones(1))
    rows, weights = [], []
    for value in family.support():
        first = _noise_for(params, family.hidden_given(params, value, jnp.full(2 * family.dim, 0.5)))
        rows.append(np.concatenate([np.broadcast_to(first, second.nodes.shape), second.nodes], axis=1))
        weights.append(float(jnp.exp(family.log_prob(params, value))) * second.weights)
    return Rule(np.concatenate(rows), np.concatenate(weights))


def relaxed_enumeration(family: AbstractDiscreteFamily, params: Any, num: int) -> Rule:
    """Noise whose first half runs over all hidden variables: each value, and all hidden variables that lead to it."""
    given = enumeration(family, params, num)

    def move(noise: jax.Array) -> jax.Array:
        hidden = family.hidden_given(params, family.sample(params, noise), noise)
        return jnp.concatenate([_noise_for(params, hidden), noise[family.dim :]])

    return Rule(np.asarray(jax.vmap(move)(jnp.asarray(given.nodes))), given.weights)


def _noise_for(params: Any, hidden: jax.Array) -> jax.Array:
    """The uniform noise that leads to a hidden variable: its distribution function."""
    if params.logits.ndim == 1:
        return jax.nn.sigmoid(hidden - params.logits)
    return jnp.exp(-jnp.exp(-(hidden - jax.nn.log_softmax(params.logits).ravel())))


def minibatches(num_data: int, size: int, *, replace: bool = False) -> np.ndarray:
    """All minibatches of a size, equally likely."""
    every = (
        itertools.product(range(num_data), repeat=size) if replace else itertools.combinations(range(num_data), size)
    )
    return np.array(list(every))


def exact_draw(noise: Rule, num_data: int, size: int | None, *, replace: bool = False) -> tuple[Draw, jax.Array]:
    """A draw of all noise nodes times all minibatches, and the probability of each replicate."""
    if size is None:
        return Draw(jnp.asarray(noise.nodes), None), jnp.asarray(noise.weights)
    batches = minibatches(num_data, size, replace=replace)
    index = np.tile(batches, (len(noise.nodes), 1))
    mass = np.repeat(noise.weights, len(batches)) / len(batches)
    return Draw(jnp.asarray(np.repeat(noise.nodes, len(batches), axis=0)), jnp.asarray(index)), jnp.asarray(mass)


def expectation(gradient: FactoredGradient, evaluation: Evaluation, mass: jax.Array) -> Any:
    """The exact expectation of a gradient taken at an exact draw, parameter-shaped."""
    dense = evaluation.algebra.dense(gradient)
    return jax.tree.map(lambda leaf: jnp.tensordot(mass, leaf, axes=1), dense)


def expectations(gradients: list[FactoredGradient], evaluation: Evaluation, mass: jax.Array) -> list[Any]:
    """Those of many gradients; the ones that have the same parts are carried back together, which compiles faster."""
    groups: dict[Any, list[int]] = {}
    for number, gradient in enumerate(gradients):
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(gradient))
        groups.setdefault((jax.tree.structure(gradient), shapes), []).append(number)
    found: list[Any] = [None] * len(gradients)
    for (_, shapes), numbers in groups.items():
        if not shapes:  # a gradient of zero has no parts
            for number in numbers:
                found[number] = expectation(gradients[number], evaluation, mass)
            continue
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(gradients[number] for number in numbers))
        means = jax.vmap(lambda gradient: expectation(gradient, evaluation, mass))(stacked)
        for place, number in enumerate(numbers):
            found[number] = jax.tree.map(lambda leaf, k=place: leaf[k], means)
    return found


def expected_value(
    function: Callable[[jax.Array], jax.Array], family: AbstractFamily, params: Any, noise: Rule
) -> jax.Array:
    """The expectation of a function of the latent, by nodes of the noise; differentiable where samples are."""
    latents = jax.vmap(lambda row: family.sample(params, row))(jnp.asarray(noise.nodes))
    return jnp.tensordot(jnp.asarray(noise.weights), jax.vmap(function)(latents), axes=1)


def total_variance(gradient: FactoredGradient, evaluation: Evaluation, mass: jax.Array) -> jax.Array:
    """The exact variance of a gradient taken at an exact draw, summed over the parameters of each leaf."""
    dense, mean = evaluation.algebra.dense(gradient), expectation(gradient, evaluation, mass)
    pairs = zip(jax.tree.leaves(dense), jax.tree.leaves(mean), strict=True)
    return jnp.stack([mass @ jnp.sum((d - m) ** 2, axis=range(1, d.ndim)) for d, m in pairs])


def all_close(left: Any, right: Any, tolerance: dict[str, float]) -> None:
    """Two trees of arrays agree."""
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), left, right)


class Given(Evaluation):
    """An evaluation whose latents are given, under whatever transport."""

    def __init__(self, problem: Problem, params: Any, latents: jax.Array) -> None:
        noise = jax.eval_shape(lambda: problem.family.noise(jax.random.key(0), 1, latents.dtype))
        super().__init__(problem, params, Draw(jnp.full((len(latents), noise.shape[1]), 0.5, latents.dtype), None))
        self.given = latents

    def latents(self, transport: Any) -> jax.Array:
        return self.given


def true_gradients(problem: Problem, terms: dict[str, AbstractTerm], params: Any, latent: Rule) -> dict[str, Any]:
    """Gradients of the integrals of density times function, with the functions held at the parameters."""
    nodes = jnp.asarray(latent.nodes)
    given = Given(problem, params, nodes)
    values = jnp.stack([term.values(given, SAMPLE, full_data=True) for term in terms.values()])

    def integrals(w: Any) -> jax.Array:
        density = jnp.exp(jax.vmap(lambda z: problem.family.log_prob(w, z))(nodes))
        return values @ (jnp.asarray(latent.weights) * density)

    grads = jax.jacrev(integrals)(params)
    return {name: jax.tree.map(lambda leaf, k=k: leaf[k], grads) for k, name in enumerate(terms)}
