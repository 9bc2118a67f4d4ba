# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every recipe for a model and a family, those that are valid and those that are not."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

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
    Price,
    Reparameterization,
    ScoreFunction,
    TransposedReparameterization,
)
from quell.evaluation import Evaluation
from quell.families import AbstractFamily
from quell.models import AbstractModel
from quell.parts import Parts
from quell.problem import Problem
from quell.terms import AbstractTerm, Data, Prior, Score, Variational
from quell.variates.flops import count_flops
from quell.variates.memory import refuses_memory
from quell.variates.named import VARIATES
from quell.variates.recipe import ControlVariate, refuses_pair, shape_of_approximated

REPLICATES = 10
"""Costs are for this many replicates of one datum each."""

MOST_COORDINATES = 1000
"""Of a problem whose recipes are all run."""

_PROBE = 4000
_UNDEFINED = "it is not finite at random parameters of the family"


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


def catalogue(model: AbstractModel, family: AbstractFamily, *, large: Problem | None = None) -> Catalogue:
    """Enumerate term, approximation and pair of estimators.

    Args:
        model: likelihood, prior and data; with few coordinates, because every recipe is run.
        family: of the approximation.
        large: a problem of the same kind with more coordinates. What is not affordable there is not valid; nothing is
            run on it.

    Returns:
        What is valid, with a stable name, a formula and a cost; and what is not, with the reason. Redundancy is found
        numerically, from samples at random parameters. The four terms are taken one by one: sums of them, and networks,
        are in `quell.zoo`.

    Example:
        >>> import quell
        >>> model = quell.gaussian_regression([[1.0], [2.0]], [1.0, 3.0], noise=1.0)
        >>> entries = quell.catalogue(model, quell.MeanField(1))
        >>> "c7" in [entry.name for entry in entries.valid]
        True
    """
    problem = Problem(model, family)
    if problem.model.dim > MOST_COORDINATES:
        raise ValueError(
            f"{model} was given, with {model.dim:,} coordinates. At most {MOST_COORDINATES:,} were needed, because "
            "every recipe is run. Write `catalogue(small_model, small_family, large=Problem(model, family))` with a "
            "model of the same kind that has few coordinates."
        )
    valid: list[ControlVariate] = []
    invalid: list[Refused] = []
    memory = None if large is None else _Memory(large)
    for variate, reason in _recipes(problem):
        reason = reason or (None if memory is None else memory.refuses(variate))
        if reason is None:
            valid.append(variate)
        else:
            invalid.append(Refused(variate, reason))
    sides = _Sides(problem, valid)
    invalid += [Refused(variate, _UNDEFINED) for variate in valid if not sides.is_defined(variate)]
    valid = [variate for variate in valid if sides.is_defined(variate)]
    priced = sorted(((variate, sides.cost(variate)) for variate in valid), key=lambda p: (not p[0].label, p[1]))
    redundant = _redundant(sides.samples([variate for variate, _ in priced]), sides.tolerance)
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
        found += [TransposedReparameterization(full_data=full), Price(full_data=full)]
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


class _Memory:
    """Which recipes are affordable for a problem; each approximation and each estimator is traced once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seen: dict[tuple[str, ...], str | None] = {}

    def refuses(self, variate: ControlVariate) -> str | None:
        """Why a recipe is not affordable; `None` if it is."""
        inside = variate.term.name, "" if variate.approximation is None else variate.approximation.name
        found = self._look(inside, lambda at: _refreshed(variate, at))
        for estimator in (variate.left, variate.right):
            found = found or self._look(
                (*inside, estimator.name), lambda at, one=estimator: _one_side(variate, one, at)
            )
        return found

    def _look(self, key: tuple[str, ...], run: Callable[[Evaluation], Any]) -> str | None:
        if key not in self.seen:
            self.seen[key] = refuses_memory(self.problem, run)
        return self.seen[key]


def _refreshed(variate: ControlVariate, evaluation: Evaluation) -> PyTree:
    state = variate.init(evaluation.problem)
    return state if variate.learns else variate.update(evaluation, state, None)


def _one_side(variate: ControlVariate, estimator: AbstractEstimator, evaluation: Evaluation) -> PyTree:
    problem, term = evaluation.problem, variate.term
    if variate.approximation is not None:
        term = approximate(variate.approximation, term, problem, variate.init(problem))
    return evaluation.particles.pullback(estimator.estimate(evaluation, term))


class _Sides:
    """The estimators that the variates are differences of; each is counted and sampled once."""

    def __init__(self, problem: Problem, variates: list[ControlVariate]) -> None:
        self.problem = problem
        # What rounding leaves of a vector of length one that is a combination of others.
        self.tolerance = 5.0 * float(np.sqrt(jnp.finfo(jnp.result_type(float)).eps))
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
        self.rows = self._sample()
        self.defined = _defined(self.rows)

    def cost(self, variate: ControlVariate) -> float:
        return sum(self.costs[place] for place in self._pair(variate))

    def is_defined(self, variate: ControlVariate) -> bool:
        """Whether both sides are finite at a fair share of random draws, where those before are finite too."""
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


def _defined(rows: Float[np.ndarray, "estimate flat"]) -> Bool[np.ndarray, "estimate"]:
    """Which estimates are finite often enough to be compared: the mirrored latents may be where the others are not."""
    common, defined = np.ones(rows.shape[1], bool), np.zeros(rows.shape[0], bool)
    for k, row in enumerate(rows):
        both = common & np.isfinite(row)
        defined[k] = np.mean(both) > 0.25
        common = both if defined[k] else common
    return defined


def _redundant(vectors: Float[np.ndarray, "variate flat"], tolerance: float) -> list[bool]:
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
