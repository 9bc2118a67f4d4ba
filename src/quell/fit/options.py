# SPDX-License-Identifier: Apache-2.0
"""The options of a fit: keyword arguments of `quell.fit`, `quell.fit_many` and, in part, `quell.sweep`."""

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypedDict, TypeVar

import equinox as eqx
import optax
from jax.sharding import Mesh
from jaxtyping import PyTree

from quell.combine import Rule
from quell.core.checks import check_count, check_positive
from quell.core.devices import checked_mesh
from quell.evaluation import Sampler
from quell.fit.algorithm import checked_optimizer
from quell.fit.checkpoint.settings import Checkpoint
from quell.fit.convergence import EarlyStopping
from quell.fit.progress import Callback
from quell.gradient import BaseGradient, list_variates
from quell.variates import ControlVariate

Variates = tuple[ControlVariate, ...] | Literal["auto"]


def listed_variates(variates: Any) -> Variates:
    """A tuple of what may be any iterable, or `"auto"`."""
    return "auto" if isinstance(variates, str) and variates == "auto" else list_variates(variates)


class SweepKeywords(TypedDict, total=False):
    """Options that `fit` and `sweep` have in common, for type checkers; `FitOptions` documents them."""

    steps: int
    tolerance: float
    sampler: Sampler | None
    base: BaseGradient | None
    rule: Rule | None
    progress: bool | None


class FitKeywords(SweepKeywords, total=False):
    """The fields of `FitOptions` as keyword arguments, for type checkers."""

    variates: Iterable[ControlVariate] | Literal["auto"]
    optimizer: optax.GradientTransformation | None
    params: PyTree | None
    max_skipped: int
    average_from: float | None
    khat: bool
    early_stopping: EarlyStopping | None
    checkpoint: Checkpoint | None
    callback: Callback | None
    mesh: Mesh | Literal["all"] | None
    throw: bool


class FitOptions(eqx.Module):
    """The options that `fit` and `fit_many` share; each is a keyword argument of both.

    Args:
        variates: control variates, and `()` for none. By default they are chosen by rule, together with the base
            gradient and the sampler where these are not given; `result.choice` tells what and why. The choice depends
            on the model, the family, these options and the key, and is the same on every machine.
        optimizer: any optax optimiser of the loss `-ELBO / num_data`, with any schedule; by default
            Newton steps for Gaussian families where some draws can see all data, else `quell.natural_gradient`; for
            other families Adam with a rate that falls from 0.05 to zero on a cosine.
        tolerance: in nats. A fit that chooses its method ends, as `CONVERGED`, when its distance to the optimum of the
            family near it and the standard error of that are together below this, and as `NOT_CONVERGED` when `steps`
            run out or it would take too many draws to tell. It has no effect on noisy gradients or on a given optimiser
            other than natural gradients, whose end `result.gap` measures.
        steps: how many to take at most, those of a checkpoint included. Where variates are chosen and weights have to
            be learned, the first ten of more than twenty are warm-up steps, which do not move; schedules do not count
            them.
        sampler: replicates and minibatches. By default ten replicates on all data for natural-gradient steps, in
            minibatches of 100 where there are more than 2000 data; for other optimisers four on all data, or one with a
            minibatch of 100. Newton steps have their own.
        base: the gradient that the variates are added to; by default the one that suits the problem.
        rule: how their weights are learned. By default `quell.Rule()` in the natural metric for natural-gradient
            steps; otherwise `quell.Rule()` for variates that are given, and `v0=0.001 / num_data` for chosen ones.
        params: to start from; the family's `init` by default. A fit whose gradient is chosen, of a linear predictor
            with many data, first warm-starts on a random subset of the data, unless the parameters are as good already.
        max_skipped: most **consecutive** steps that may be skipped because they would make the parameters infinite or
            NaN. A skipped step changes nothing; the next one has another draw. One too many, and the fit ends as
            `DIVERGED`: isolated non-finite steps are noise; consecutive ones mean divergence. The history counts them.
            With the default, 0, the first ends the fit, because leaving out draws biases the gradient.
        average_from: average the parameters over the steps after this fraction of `steps`, for example 0.5 for the
            second half; the result holds the average. It removes the noise that a constant learning rate leaves. A fit
            that ends before that fraction has no average and holds the last parameters. Where an average is asked for,
            no Newton steps are taken, which leave no noise.
        early_stopping: end the fit, as `CONVERGED`, when the ELBO no longer improves; each of several fits alone.
        checkpoint: write the fit to a file, or resume it from one; several fits share one file.
        callback: called between chunks of steps, about four times a second, with a `FitProgress`; returning True ends
            the fit, as `STOPPED`. The clock decides when it is called; what must be the same in every run belongs in
            `early_stopping`. An exception passes through, after the checkpoint is written. Of several fits it is called
            for each that is running, and ends that one alone. Of several processes the first calls it, which must not
            evaluate anything on the data: the others would have to as well.
        progress: show a bar; by default if stderr is a terminal.
        mesh: spread data and work over these devices, or over `"all"`; the fit is the same to rounding. Their number
            must divide the data, where these are more than 2,000, and the minibatch of a `sampler`. With several
            processes each gives its own rows, in equal-sized shards, and all other arguments are identical; what
            evaluates the result on the data (`elbo`, `report`) must be called in all of them.
        throw: raise on divergence instead of returning the last finite parameters with a warning.
        khat: whether `print(result)` and `result.warnings` take k-hat, on thousands of draws that see all data.
    """

    variates: Variates = eqx.field(default="auto", converter=listed_variates)
    optimizer: optax.GradientTransformation | None = None
    steps: int = 2000
    tolerance: float = 0.01
    sampler: Sampler | None = None
    base: BaseGradient | None = None
    rule: Rule | None = None
    params: PyTree | None = None
    max_skipped: int = 0
    average_from: float | None = None
    early_stopping: EarlyStopping | None = None
    checkpoint: Checkpoint | None = None
    callback: Callback | None = None
    progress: bool | None = None
    mesh: Mesh | None = eqx.field(default=None, converter=checked_mesh)
    throw: bool = False
    khat: bool = True

    def __check_init__(self) -> None:
        """Refuse what no fit can use."""
        check_count("steps", self.steps)
        check_positive("tolerance", self.tolerance)
        check_count("max_skipped", self.max_skipped, least=0)
        if self.average_from is not None and not 0 <= self.average_from < 1:
            raise ValueError(f"`average_from` must be at least 0 and below 1, got {self.average_from}.")
        if self.optimizer is not None:
            checked_optimizer(self.optimizer)
        _check_type("sampler", self.sampler, Sampler, "quell.Sampler(10)")
        _check_type("base", self.base, BaseGradient, "quell.BaseGradient()")
        _check_type("rule", self.rule, Rule, "quell.Rule()")
        _check_type("early_stopping", self.early_stopping, EarlyStopping, "quell.EarlyStopping(tolerance=0.5)")
        _check_type("checkpoint", self.checkpoint, Checkpoint, "quell.Checkpoint('fit.quell')")
        if self.callback is not None and not callable(self.callback):
            raise TypeError(
                f"`callback` must be a function of one argument, got {self.callback!r}; try "
                "`callback=lambda progress: print(progress.step)`."
            )


Function = TypeVar("Function", bound=Callable[..., Any])


def shows_options(keywords: type) -> Callable[[Function], Function]:
    """Let `help` and notebooks show the options of a function with their defaults, instead of `**options`.

    Args:
        keywords: the `TypedDict` that annotates `**options`.
    """
    given = keywords.__annotations__  # those of its bases included
    defaults = {field.name: field.default for field in dataclasses.fields(FitOptions)}

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=given[name])
            for name, default in defaults.items()
            if name in given
        ]
        function.__signature__ = signature.replace(parameters=[*own, *more])  # pyright: ignore[reportFunctionMemberAccess]
        return function

    return decorate


def _check_type(name: str, given: Any, kind: type, example: str) -> None:
    if given is not None and not isinstance(given, kind):
        raise TypeError(f"`{name}` must be a `quell.{kind.__name__}`, got {given!r}; try `{name}={example}`.")
