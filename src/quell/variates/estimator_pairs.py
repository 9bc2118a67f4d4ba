# SPDX-License-Identifier: Apache-2.0
"""What can be told of recipes by running the two estimators of each: their cost, and which add nothing to others."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from quell.approximations import approximate
from quell.core.tiers import tiered_once
from quell.estimators import AbstractEstimator
from quell.evaluation import Draw, Evaluation, Problem, Sampler
from quell.families.factored import FactoredGradient
from quell.terms import AbstractTerm
from quell.variates.cost import count_flops, refuses_memory
from quell.variates.recipe import ControlVariate

REPLICATES = 10
"""Costs are for this many replicates of one datum each."""

_PROBE = 4000


def key_of(variate: ControlVariate, estimator: AbstractEstimator) -> tuple[str, str, str]:
    """What tells one estimator of a variate from others: term, approximation, estimator."""
    approximation = "" if variate.approximation is None else variate.approximation.name
    return variate.term.name, approximation, estimator.name


def estimate_of(
    problem: Problem, variate: ControlVariate, estimator: AbstractEstimator
) -> Callable[[Evaluation], FactoredGradient]:
    """One of the two estimators of a variate, as a function of a draw."""
    term: AbstractTerm = variate.term
    if variate.approximation is not None:
        term = approximate(variate.approximation, term, problem, variate.init(problem))
    return lambda evaluation: estimator.estimate(evaluation, term)


class EstimatorPairs:
    """The estimators that the variates are differences of; each is counted and sampled once."""

    def __init__(self, problem: Problem, variates: list[ControlVariate]) -> None:
        """Count and sample each estimator."""
        self.problem = problem
        # What rounding leaves of a vector of length one that is a combination of others.
        self.tolerance = 5.0 * float(np.sqrt(jnp.finfo(jnp.result_type(float)).eps))
        self.places: dict[tuple[str, str, str], int] = {}
        self.estimates: list[Callable[[Evaluation], FactoredGradient]] = []
        for variate in variates:
            for estimator in (variate.left, variate.right):
                key = key_of(variate, estimator)
                if key not in self.places:
                    self.places[key] = len(self.estimates)
                    self.estimates.append(estimate_of(problem, variate, estimator))
        draw, params = _probe(problem, Sampler(num_replicates=REPLICATES, batch_size=1))
        self.costs = [count_flops(self._gradient(estimate), params, draw) for estimate in self.estimates]
        self.rows = self._sample()
        self.defined = _defined(self.rows)

    def cost(self, variate: ControlVariate) -> float:
        """Operations of both estimators."""
        return sum(self.costs[place] for place in self._pair(variate))

    def is_defined(self, variate: ControlVariate) -> bool:
        """Whether both estimators are finite at a fair share of random draws, where those before are finite too."""
        return bool(all(self.defined[place] for place in self._pair(variate)))

    def samples(self, variates: list[ControlVariate]) -> Float[np.ndarray, "variate flat"]:
        """The variates at one random point, each as one vector of length one, or zero where it vanishes."""
        # A likelihood may be undefined at some latents; those where it is not are enough to compare.
        rows = np.where(np.all(np.isfinite(self.rows[self.defined]), axis=0), self.rows, 0.0)
        found = np.zeros((len(variates), rows.shape[1]))
        for k, variate in enumerate(variates):
            left, right = (rows[place].astype(np.float64) for place in self._pair(variate))
            size = max(np.linalg.norm(left), np.linalg.norm(right))
            norm = np.linalg.norm(left - right)
            if norm > self.tolerance * size:
                found[k] = (left - right) / norm
        return found

    def _sample(self) -> Float[np.ndarray, "estimate flat"]:
        num = int(np.clip(_PROBE // self.problem.family.num_params, 24, 400))
        sampler = Sampler(num_replicates=num, batch_size=min(2, max(1, self.problem.model.num_data - 1)))
        draw, params = _probe(self.problem, sampler)
        return np.asarray(_dense_rows(self.problem, self.estimates, params, draw))

    def _pair(self, variate: ControlVariate) -> tuple[int, int]:
        return self.places[key_of(variate, variate.left)], self.places[key_of(variate, variate.right)]

    def _gradient(self, estimate: Callable[[Evaluation], FactoredGradient]) -> Callable[[PyTree, Draw], PyTree]:
        def gradient(params: PyTree, draw: Draw) -> PyTree:
            evaluation = Evaluation(self.problem, params, draw)
            return evaluation.algebra.pullback(estimate(evaluation))

        return gradient


class Affordable:
    """As `ControlVariate.refuses` sees memory; but each approximation and each estimator is traced once.

    Args:
        problem: model and family.
    """

    def __init__(self, problem: Problem) -> None:
        """Nothing is traced yet."""
        self.problem = problem
        self.seen: dict[tuple[str, ...], str | None] = {}

    def refuses(self, variate: ControlVariate) -> str | None:
        """Why a recipe is not affordable; `None` if it is."""
        pairs = {key_of(variate, estimator): estimator for estimator in (variate.left, variate.right)}
        term, approximation, _ = next(iter(pairs))
        found = self._check((term, approximation), lambda at: _refreshed(variate, at))
        for key, estimator in pairs.items():
            found = found or self._check(key, lambda at, one=estimator: _one_estimator(variate, one, at))
        return found

    def _check(self, key: tuple[str, ...], run: Callable[[Evaluation], Any]) -> str | None:
        if key not in self.seen:
            self.seen[key] = refuses_memory(self.problem, run)
        return self.seen[key]


def _refreshed(variate: ControlVariate, evaluation: Evaluation) -> PyTree:
    state = variate.init(evaluation.problem)
    return state if variate.learns else variate.update(evaluation, state, None)


def _one_estimator(variate: ControlVariate, estimator: AbstractEstimator, evaluation: Evaluation) -> PyTree:
    return evaluation.algebra.pullback(estimate_of(evaluation.problem, variate, estimator)(evaluation))


def _dense_rows(
    problem: Problem, estimates: list[Callable[[Evaluation], FactoredGradient]], params: PyTree, draw: Draw
) -> Float[Array, "estimate flat"]:
    def rows(params: PyTree, draw: Draw) -> Float[Array, "estimate flat"]:
        evaluation = Evaluation(problem, params, draw)
        trees = [evaluation.algebra.dense(estimate(evaluation)) for estimate in estimates]
        return jnp.stack([jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in trees])

    return tiered_once(rows)(params, draw)


def _defined(rows: Float[np.ndarray, "estimate flat"]) -> Bool[np.ndarray, "estimate"]:
    """Which estimates are finite often enough to be compared: the mirrored latents may be where the others are not."""
    common, defined = np.ones(rows.shape[1], bool), np.zeros(rows.shape[0], bool)
    for k, row in enumerate(rows):
        both = common & np.isfinite(row)
        defined[k] = np.mean(both) > 0.25
        common = both if defined[k] else common
    return defined


def find_redundant(vectors: Float[np.ndarray, "variate flat"], tolerance: float) -> list[bool]:
    """Gram-Schmidt in the order given: what leaves nothing is a combination of those before."""
    basis = np.zeros((0, vectors.shape[1]))
    redundant = []
    for vector in vectors:
        rest = vector
        for _ in range(2):  # the second time removes what rounding left
            rest = rest - basis.T @ (basis @ rest)
        size = np.linalg.norm(rest)
        redundant.append(bool(size <= tolerance))
        if size > tolerance:
            basis = np.vstack([basis, rest / size])
    return redundant


def _probe(problem: Problem, sampler: Sampler) -> tuple[Draw, PyTree]:
    """A draw, and parameters away from every special point."""
    draw_key, *keys = jax.random.split(jax.random.key(0), 1 + len(jax.tree.leaves(problem.family.init())))
    leaves, tree = jax.tree.flatten(problem.family.init())
    moved = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape, leaf.dtype) for leaf, key in zip(leaves, keys, strict=True)
    ]
    draw = sampler.draw(draw_key, problem.family, problem.model.num_data, jnp.result_type(*leaves))
    return draw, jax.tree.unflatten(tree, moved)
