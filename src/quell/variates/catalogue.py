# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every recipe for a model and a family, those that are valid and those that are not."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from quell.approximations import (
    AbstractApproximation,
    Baseline,
    Concrete,
    JaakkolaJordan,
    TaylorInData,
    TaylorInLatent,
    approximate,
    refuses_to_approximate,
)
from quell.compilation import quick_options
from quell.draw import Draw, Sampler
from quell.estimators import (
    AbstractEstimator,
    ClosedForm,
    ConditionalScoreFunction,
    GeneralizedReparameterization,
    LocalReparameterization,
    Reparameterization,
    ScoreFunction,
)
from quell.evaluation import Evaluation
from quell.families import AbstractFamily
from quell.models import AbstractModel
from quell.parts import Parts
from quell.problem import Problem
from quell.terms import AbstractTerm, Data, Prior, Score, Variational
from quell.variates.flops import count_flops
from quell.variates.named import VARIATES
from quell.variates.recipe import ControlVariate, refuses_pair, shape_of_approximated

REPLICATES = 10
"""Costs are for this many replicates of one datum each."""

_PROBE = 24
_SAME = 1e-6


@dataclasses.dataclass(frozen=True)
class Listed:
    """A valid recipe.

    Attributes:
        variate: to use.
        cost: floating-point operations a step, for ten replicates of one datum each, as if nothing were shared.
        redundant: whether it is a linear combination of those before it in the catalogue.
    """

    variate: ControlVariate
    cost: float
    redundant: bool

    @property
    def name(self) -> str:
        """The same in every version: the paper's name, or the recipe in words."""
        return self.variate.name

    def as_json(self) -> dict[str, Any]:
        """One entry of `valid`."""
        extra = {"cost": self.cost, "redundant": self.redundant, "formula": self.variate.formula}
        return {"name": self.name, **_recipe(self.variate), **extra}


@dataclasses.dataclass(frozen=True)
class Refused:
    """A recipe that does not apply.

    Attributes:
        variate: as it would be.
        reason: why not.
    """

    variate: ControlVariate
    reason: str

    @property
    def name(self) -> str:
        """The recipe in words."""
        return self.variate.name

    def as_json(self) -> dict[str, Any]:
        """One entry of `invalid`."""
        return {"name": self.name, **_recipe(self.variate), "reason": self.reason}


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """Every recipe for a model and a family.

    Attributes:
        valid: the paper's seven first, then the cheapest first.
        invalid: with the reasons.
    """

    valid: tuple[Listed, ...]
    invalid: tuple[Refused, ...]

    @property
    def variates(self) -> tuple[ControlVariate, ...]:
        """The valid ones that are not linear combinations of others."""
        return tuple(entry.variate for entry in self.valid if not entry.redundant)

    def as_json(self) -> dict[str, Any]:
        """Both lists, ready to be written."""
        return {"valid": [e.as_json() for e in self.valid], "invalid": [e.as_json() for e in self.invalid]}

    def __repr__(self) -> str:
        """How many there are."""
        independent = len(self.variates)
        return f"Catalogue({len(self.valid)} valid, {independent} of them independent; {len(self.invalid)} invalid)"


def catalogue(model: AbstractModel, family: AbstractFamily) -> Catalogue:
    """Enumerate term, approximation and pair of estimators.

    Args:
        model: likelihood, prior and data.
        family: of the approximation.

    Returns:
        What is valid, with a stable name, a formula and a cost; and what is not, with the reason. Redundancy is found
        numerically, from samples at random parameters.

    Example:
        >>> import quell
        >>> model = quell.gaussian_regression([[1.0], [2.0]], [1.0, 3.0], noise=1.0)
        >>> entries = quell.catalogue(model, quell.MeanField(1))
        >>> "taylor-z(data): rp - cf" in [entry.name for entry in entries.valid]
        True
    """
    problem = Problem(model, family)
    valid: list[ControlVariate] = []
    invalid: list[Refused] = []
    for variate, reason in _recipes(problem):
        if reason is None:
            valid.append(variate)
        else:
            invalid.append(Refused(variate, reason))
    sides = _Sides(problem, valid)
    priced = sorted(((variate, sides.cost(variate)) for variate in valid), key=lambda p: (not p[0].label, p[1]))
    redundant = _redundant(sides.gram([variate for variate, _ in priced]))
    rows = zip(priced, redundant, strict=True)
    return Catalogue(tuple(Listed(variate, cost, flag) for (variate, cost), flag in rows), tuple(invalid))


def _recipes(problem: Problem) -> list[tuple[ControlVariate, str | None]]:
    """Every recipe, with the reason against it."""
    named = {variate.formula: variate for variate in VARIATES.values()}
    approximations: tuple[AbstractApproximation | None, ...] = (
        None,
        TaylorInLatent(),
        TaylorInData(),
        JaakkolaJordan(),
        Concrete(),
        Baseline(),
        Baseline("moving-average"),
    )
    found = []
    for term, approximation in itertools.product((Data(), Prior(), Variational(), Score()), approximations):
        inside, against = term, None
        if approximation is not None:
            against = refuses_to_approximate(approximation, problem, term)
            inside = term if against else shape_of_approximated(approximation, term, problem)
        for left, right in itertools.combinations(_estimators(problem, has_data=isinstance(term, Data)), 2):
            variate = ControlVariate(term, left, right, approximation=approximation)
            reason = against or refuses_pair(problem, inside, left, right)
            found.append((named.get(variate.formula, variate), reason))
    return found


def _estimators(problem: Problem, *, has_data: bool) -> list[AbstractEstimator]:
    """Every estimator; those on all data only for a term that has data."""
    names = (None, *problem.family.transports[1:])
    found: list[AbstractEstimator] = []
    for full in (False, True) if has_data else (False,):
        found += [Reparameterization(name, full_data=full) for name in names]
        found += [LocalReparameterization(full_data=full), GeneralizedReparameterization(full_data=full)]
        found += [ScoreFunction(name, full_data=full) for name in names]
        found += [ConditionalScoreFunction(full_data=full), ClosedForm(full_data=full)]
    return found


def _recipe(variate: ControlVariate) -> dict[str, Any]:
    return {
        "term": variate.term.name,
        "approximation": None if variate.approximation is None else variate.approximation.name,
        "left": variate.left.name,
        "right": variate.right.name,
    }


class _Sides:
    """The estimators that the variates are differences of; each is counted and sampled once."""

    def __init__(self, problem: Problem, variates: list[ControlVariate]) -> None:
        self.problem = problem
        self.places: dict[tuple[str, str, str], int] = {}
        self.estimates: list[Callable[[Evaluation], Parts]] = []
        for variate in variates:
            for estimator in (variate.left, variate.right):
                key = self._key(variate, estimator)
                if key not in self.places:
                    self.places[key] = len(self.estimates)
                    self.estimates.append(self._estimate(variate, estimator))
        draw, params = _probe(problem, Sampler(num_replicates=REPLICATES, batch_size=1))
        self.costs = [count_flops(self._gradient(estimate), params, draw) for estimate in self.estimates]

    def cost(self, variate: ControlVariate) -> float:
        return sum(self.costs[place] for place in self._pair(variate))

    def gram(self, variates: list[ControlVariate]) -> Float[np.ndarray, "variate variate"]:
        """Inner products of samples of the variates, all at one random point, each scaled to length one."""
        size = min(2, self.problem.model.num_data)
        draw, params = _probe(self.problem, Sampler(num_replicates=_PROBE, batch_size=size))
        rows = np.asarray(_dense_rows(self.problem, self.estimates, params, draw), np.float64)
        pairs = [self._pair(variate) for variate in variates]
        differences = np.stack([rows[left] - rows[right] for left, right in pairs]) if pairs else np.zeros((0, 1))
        sizes = np.array([max(np.linalg.norm(rows[place]) for place in pair) for pair in pairs]).reshape(-1, 1)
        norms = np.linalg.norm(differences, axis=1, keepdims=True)
        live = norms > 1e-5 * np.maximum(sizes, 1e-30)
        unit = np.where(live, differences / np.where(live, norms, 1.0), 0.0)
        return unit @ unit.T

    def _pair(self, variate: ControlVariate) -> tuple[int, int]:
        return self.places[self._key(variate, variate.left)], self.places[self._key(variate, variate.right)]

    def _key(self, variate: ControlVariate, estimator: AbstractEstimator) -> tuple[str, str, str]:
        approximation = "" if variate.approximation is None else variate.approximation.name
        return variate.term.name, approximation, estimator.name

    def _estimate(self, variate: ControlVariate, estimator: AbstractEstimator) -> Callable[[Evaluation], Parts]:
        term: AbstractTerm = variate.term
        if variate.approximation is not None:
            term = approximate(variate.approximation, term, self.problem, variate.init(self.problem))
        return lambda evaluation: estimator.estimate(evaluation, term)

    def _gradient(self, estimate: Callable[[Evaluation], Parts]) -> Callable[[PyTree, Draw], PyTree]:
        def gradient(params: PyTree, draw: Draw) -> PyTree:
            evaluation = Evaluation(self.problem, params, draw)
            return evaluation.particles.pullback(estimate(evaluation))

        return gradient


def _dense_rows(
    problem: Problem, estimates: list[Callable[[Evaluation], Parts]], params: PyTree, draw: Draw
) -> Float[Array, "estimate flat"]:
    def rows(params: PyTree, draw: Draw) -> Float[Array, "estimate flat"]:
        evaluation = Evaluation(problem, params, draw)
        trees = [evaluation.particles.dense(estimate(evaluation)) for estimate in estimates]
        return jnp.stack([jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)]) for tree in trees])

    return jax.jit(rows, compiler_options=quick_options(jax.default_backend()))(params, draw)


def _redundant(gram: Float[np.ndarray, "variate variate"]) -> list[bool]:
    """Gram-Schmidt in the order given, from inner products of vectors of length one (or zero)."""
    kept: list[np.ndarray] = []  # rows of the Cholesky factor of the independent ones
    chosen: list[int] = []
    redundant = []
    for k in range(len(gram)):
        row = np.zeros(len(chosen))
        for place, other in enumerate(chosen):
            row[place] = (gram[k, other] - row[:place] @ kept[place][:place]) / kept[place][place]
        rest = gram[k, k] - row @ row
        redundant.append(not rest > _SAME)
        if rest > _SAME:
            kept.append(np.append(row, np.sqrt(rest)))
            chosen.append(k)
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
