# SPDX-License-Identifier: Apache-2.0
"""`quell.fit` and `quell.fit_many`: a model and a family in, fitted posteriors out."""

import dataclasses
import time
import warnings
from typing import Any, Unpack

import jax
from jaxtyping import Array, Key

from quell.core.checks import check_count, check_key
from quell.families import AbstractFamily
from quell.fit.attempts import Task, fit_task
from quell.fit.extras import adapter
from quell.fit.family_choice import FamilyLike, choose_family
from quell.fit.options import FitKeywords, FitOptions, listed_variates, shows_options
from quell.fit.progress import progress_bar
from quell.fit.result import FitResult
from quell.fit.status import DivergenceError, Status
from quell.models import AbstractModel

ModelLike = Any
"""A model of quell, a function with NumPyro's primitives, or a model of PyMC, which need not be installed."""


@shows_options(FitKeywords)
def fit(
    model: ModelLike,
    *args: Any,
    family: FamilyLike = None,
    key: Key[Array, ""],
    **options: Unpack[FitKeywords],
) -> FitResult:
    """Fit a family to the posterior of a model.

    `quell.fit(model, key=key)` chooses the family, `quell.fit(model, quell.MeanField(model.dim), key=key)` takes the
    one that is given, and `quell.fit(function, x, y, key=key)` reads a NumPyro model with its arguments first. A model
    of PyMC is read as `quell.from_pymc` does.

    Args:
        model: of quell or PyMC, or a function with NumPyro's primitives.
        args: the family, or the arguments of a NumPyro model.
        family: of the approximation, or a function of the number of coordinates that makes it, such as
            `quell.MeanField`; by default full rank up to 400 coordinates and mean field beyond.
        key: all randomness of the fit is a function of it.
        options: the fields of `quell.FitOptions`, such as `steps`, `variates` and `optimizer`.

    Returns:
        Parameters, history and status. Ctrl-C returns the last parameters; in one of several processes it ends all.

    Example:
        >>> import jax, quell
        >>> data = quell.paper.load("sonar")
        >>> model = quell.logistic_regression(data.features, data.labels)
        >>> result = quell.fit(model, quell.MeanField(model.dim), key=jax.random.key(0))
        >>> result.status.name, result.history.num_steps < 20
        ('CONVERGED', True)
    """
    check_key(key)
    return _fit(model, args, family, key, options)[0]


@shows_options(FitKeywords)
def fit_many(
    model: ModelLike,
    *args: Any,
    family: FamilyLike = None,
    num_fits: int,
    key: Key[Array, ""],
    **options: Unpack[FitKeywords],
) -> tuple[FitResult, ...]:
    """Several independent fits side by side, in one compiled program.

    Fit `k` is `fit` with `jax.random.split(key, num_fits)[k]`, to rounding, and to the tolerance where an exact fit
    needs more nodes. One that diverges, converges or is stopped waits for the others. All start from the same `params`
    and share one checkpoint.

    Args:
        model: as for `fit`.
        args: as for `fit`.
        family: as for `fit`.
        num_fits: how many.
        key: split into one key per fit.
        options: the fields of `quell.FitOptions`, as for `fit`; `throw` raises when all have ended.

    Returns:
        One result per fit. The seconds of each are those of all together.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> family = quell.MeanField(2)
        >>> results = quell.fit_many(model, family, variates=(), num_fits=3, steps=50, key=jax.random.key(0))
        >>> [result.history.num_steps for result in results]
        [50, 50, 50]
    """
    check_key(key)
    check_count("num_fits", num_fits)
    return tuple(_fit(model, args, family, jax.random.split(key, num_fits), options))


def _read(model: ModelLike, args: tuple[Any, ...], family: FamilyLike) -> tuple[AbstractModel, FamilyLike]:
    """A model of quell, and the family among the arguments."""
    if _is_pymc(model):
        model = adapter("pymc", "`quell.fit` of a PyMC model").from_pymc(model)
    if not isinstance(model, AbstractModel):
        if not callable(model):
            raise TypeError(f"`model` must be a model of quell, NumPyro or PyMC, got {model!r}; see `quell.Model`.")
        kinds = [one if isinstance(one, type) else type(one) for one in args]
        found = next((kind for kind in kinds if issubclass(kind, AbstractFamily)), None)
        if found is not None:
            raise TypeError(f"A NumPyro model takes its family by name; try `family=quell.{found.__name__}`.")
        return adapter("numpyro.model", "`quell.fit` of a function").from_numpyro(model, *args), family
    if len(args) + (family is not None) > 1:
        raise TypeError(f"`fit` takes a model and its family, got {len(args)} arguments after {model!r}.")
    return model, args[0] if args else family


def _is_pymc(model: Any) -> bool:
    """Whether a model is of PyMC, which need not be installed."""
    return any(kind.__module__.startswith("pymc.") and kind.__name__ == "Model" for kind in type(model).__mro__)


def _told(result: FitResult, reason: str | None, reading: float) -> FitResult:
    """With the reason of a family that was chosen, and the seconds of reading the model."""
    seconds, choice = dataclasses.replace(result.seconds, reading=result.seconds.reading + reading), result.choice
    if reason is not None and choice is not None:
        choice = dataclasses.replace(choice, reason=f"{reason} {choice.reason}")
    return dataclasses.replace(result, seconds=seconds, choice=choice)


def _fit(
    model: ModelLike,
    args: tuple[Any, ...],
    family: FamilyLike,
    key: Key[Array, "*fit"],
    given: FitKeywords,
) -> list[FitResult]:
    """Run the fits, and warn or raise if one has diverged; of several, say which."""
    if "variates" in given:  # an iterator must not come to a PyTree
        given["variates"] = listed_variates(given["variates"])
    unknown = sorted(set(given) - {field.name for field in dataclasses.fields(FitOptions)})
    if unknown and not isinstance(model, AbstractModel):
        raise TypeError(
            f"`{unknown[0]}` is no option of a fit. A NumPyro model takes its arguments by position here; with names: "
            f"`quell.fit(quell.from_numpyro(model, ..., {unknown[0]}=...), key=key)`."
        )
    options = FitOptions(**given)
    with progress_bar(options.progress, options.steps, options.mesh) as bar:
        began = time.perf_counter()
        model, family = _read(model, args, family)
        chosen, reading = choose_family(family, model.dim), time.perf_counter() - began
        task = Task(options, model, chosen.family, key)
        results = [_told(one, chosen.reason, reading) for one in fit_task(task, bar)]
    diverged = [number for number, result in enumerate(results) if result.status is Status.DIVERGED]
    if diverged:
        which = "The fit" if key.ndim == 0 else f"{len(diverged)} of {len(results)} fits diverged; fit {diverged[0]}"
        done = results[diverged[0]].history.num_steps
        message = f"{which} stopped after {done} of {options.steps} steps. {Status.DIVERGED.value}"
        if options.throw:
            raise DivergenceError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=3)
    return results
