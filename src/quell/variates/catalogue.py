# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every recipe for a model and a family, those that are valid and those that are not."""

import dataclasses
import itertools
from typing import Any

from quell.approximations import (
    AbstractApproximation,
    Baseline,
    Concrete,
    JaakkolaJordan,
    TaylorInData,
    TaylorInLatent,
    refuses_to_approximate,
)
from quell.estimators import (
    AbstractEstimator,
    BonnetPrice,
    ClosedForm,
    ConditionalScoreFunction,
    GeneralizedReparameterization,
    LocalReparameterization,
    Reparameterization,
    ScoreFunction,
    TransposedReparameterization,
)
from quell.evaluation import Problem, row_by_row
from quell.families import AbstractFamily
from quell.models import AbstractModel
from quell.terms import Data, Prior, Score, Variational
from quell.variates.estimator_pairs import Affordable, EstimatorPairs, find_redundant
from quell.variates.paper import VARIATES
from quell.variates.recipe import ControlVariate, refuses_pair, shape_of_approximated

MOST_COORDINATES = 1000
"""Of a problem whose recipes are all run."""

_UNDEFINED = "it is not finite at random parameters of the family"


@dataclasses.dataclass(frozen=True)
class Listed:
    """A valid recipe.

    Attributes:
        variate: to use.
        cost: floating-point operations per step, for ten replicates of one datum each, as if nothing were shared.
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
        are in `quell.literature`.

    Example:
        >>> import quell
        >>> model = quell.gaussian_regression([[1.0], [2.0]], [1.0, 3.0], noise=1.0)
        >>> entries = quell.catalogue(model, quell.MeanField(1))
        >>> "c7" in [entry.name for entry in entries.valid]
        True
    """
    problem = row_by_row(Problem(model, family))
    if problem.model.dim > MOST_COORDINATES:
        raise ValueError(
            f"`model` must have at most {MOST_COORDINATES:,} coordinates, because every recipe is run, got "
            f"{model.dim:,}; try `catalogue(small_model, small_family, large=Problem(model, family))` with a small "
            "model of the same kind."
        )
    valid: list[ControlVariate] = []
    invalid: list[Refused] = []
    memory = None if large is None else Affordable(large)
    for variate, reason in _recipes(problem):
        reason = reason or (None if memory is None else memory.refuses(variate))
        if reason is None:
            valid.append(variate)
        else:
            invalid.append(Refused(variate, reason))
    pairs = EstimatorPairs(problem, valid)
    invalid += [Refused(variate, _UNDEFINED) for variate in valid if not pairs.is_defined(variate)]
    valid = [variate for variate in valid if pairs.is_defined(variate)]
    priced = sorted(((variate, pairs.cost(variate)) for variate in valid), key=lambda p: (not p[0].label, p[1]))
    redundant = find_redundant(pairs.samples([variate for variate, _ in priced]), pairs.tolerance)
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
        found += [TransposedReparameterization(full_data=full), BonnetPrice(full_data=full)]
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
