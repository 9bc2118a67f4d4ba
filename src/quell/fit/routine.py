# SPDX-License-Identifier: Apache-2.0
"""`quell.fit`: a model and a family in, a fitted posterior out."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import optax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from quell.combine import Rule
from quell.core.checks import check_key
from quell.core.devices import checked_mesh
from quell.evaluation import Sampler
from quell.families import AbstractFamily
from quell.fit.callback import Callback
from quell.fit.checkpoint import Checkpoint
from quell.fit.driver import run_plan
from quell.fit.early_stopping import EarlyStopping
from quell.fit.plan import FitOptions, split_key
from quell.fit.result import FitResult
from quell.fit.status import DivergenceError, Status
from quell.gradient import BaseGradient, list_variates
from quell.models import AbstractModel
from quell.variates import ControlVariate


def fit(
    model: AbstractModel,
    family: AbstractFamily,
    *,
    key: Key[Array, ""],
    variates: Iterable[ControlVariate] | Literal["auto"] = "auto",
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 2000,
    sampler: Sampler | None = None,
    base: BaseGradient | None = None,
    rule: Rule | None = None,
    params: PyTree | None = None,
    max_skipped: int = 0,
    average_from: float | None = None,
    early_stopping: EarlyStopping | None = None,
    checkpoint: Checkpoint | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
    mesh: Mesh | Literal["all"] | None = None,
    throw: bool = False,
) -> FitResult:
    """Fit a family to the posterior of a model with quiet gradients.

    Args:
        model: likelihood, prior and data.
        family: of the approximation.
        key: all randomness of the fit is a function of it.
        variates: control variates, and `()` for none. By default they are chosen, together with the base gradient and
            the sampler where these are not given: by rule before the first step, and by measured noise and measured
            time later on, where a fit is long enough; `result.choice` tells what and why. What is measured depends on
            the machine: give the variates to have the same fit everywhere.
        optimizer: any optax optimiser of the loss `-ELBO / num_data`, with any schedule; by default
            `quell.natural_gradient` for Gaussian families, and Adam with a rate that falls from 0.05 to zero on a
            cosine for others.
        steps: how many to take at most, those of a checkpoint included. Where variates are chosen and weights have to
            be learned, the first ten of more than twenty do so: they do not move, and schedules do not count them. A
            fit whose gradient was chosen to be exact, with natural-gradient steps, ends sooner, as `CONVERGED`, when a
            step can gain less than a thousandth of a nat.
        sampler: replicates and minibatches. By default ten replicates on all data for natural-gradient steps, in
            minibatches of 100 where there are more than 2000 data, and one where Hessians are taken; for other
            optimisers four on all data, or one with a minibatch of 100.
        base: the gradient that the variates are added to; by default the one that suits the problem.
        rule: how their weights are learned. By default `quell.Rule()` in the natural metric for natural-gradient
            steps; otherwise `quell.Rule()` for variates that are given, and `v0=0.001 / num_data` for chosen ones.
        params: to start from; the family's `init` by default. A fit whose gradient is chosen, of a linear predictor
            with many data, first walks to the optimum of some of them, unless the parameters are as good already.
        max_skipped: most steps **in a row** that may be skipped because they would make the parameters infinite or NaN.
            A skipped step changes nothing; the next one has another draw. One too many, and the fit ends as `DIVERGED`:
            draws that are bad by chance come alone, those of a fit that has gone astray do not. The history counts
            them. With the default, 0, the first ends the fit, because leaving out draws biases the gradient.
        average_from: average the parameters over the steps after this fraction of `steps`, for example 0.5 for the
            second half; the result holds the average. It takes out the noise that a constant learning rate leaves. A
            fit that ends before that fraction has no average and holds the last parameters.
        early_stopping: end the fit, as `CONVERGED`, when the ELBO no longer improves.
        checkpoint: keep the fit in a file, or go on from one.
        callback: called between chunks of steps, about four times a second, with a `FitProgress`; returning True ends
            the fit, as `STOPPED`. The clock decides when; what must be the same in every run belongs in
            `early_stopping`. An exception passes through, after the checkpoint is written. Of several processes the
            first calls it, which must not evaluate anything on the data: the others would have to as well.
        progress: show a bar; by default where somebody is watching.
        mesh: spread data and work over these devices, or over `"all"`; the fit is the same to rounding, unless
            `variates="auto"` measures its time and takes another gradient on the way. Their number must divide the
            data, where these are more than 2,000, and the minibatch of a `sampler`. With several processes each gives
            its own rows, equally many, and all else alike; what evaluates the result on the data (`elbo`, `report`)
            must be called in all of them.
        throw: raise on divergence instead of returning the last finite parameters with a warning.

    Returns:
        Parameters, history and status. Ctrl-C returns what was reached; in one of several processes it ends all.

    Example:
        >>> import jax, quell
        >>> data = quell.paper.load("sonar")
        >>> model = quell.logistic_regression(data.features, data.labels)
        >>> result = quell.fit(model, quell.MeanField(model.dim), steps=20, key=jax.random.key(0))
        >>> result.status.name, result.history.num_steps
        ('COMPLETED', 20)
    """
    check_key(key)
    options = FitOptions(
        variates="auto" if isinstance(variates, str) and variates == "auto" else list_variates(variates),
        optimizer=optimizer,
        steps=steps,
        sampler=sampler,
        base=base,
        rule=rule,
        params=params,
        max_skipped=max_skipped,
        average_from=average_from,
        early_stopping=early_stopping,
        checkpoint=checkpoint,
        callback=callback,
        progress=progress,
        mesh=checked_mesh(mesh),
    )
    results = run_plan(options.plan(model, family, key))
    _report_divergence(results, steps=steps, throw=throw)
    return results[0]


def fit_many(
    model: AbstractModel,
    family: AbstractFamily,
    *,
    num_fits: int,
    key: Key[Array, ""],
    variates: Iterable[ControlVariate] | Literal["auto"] = "auto",
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 2000,
    sampler: Sampler | None = None,
    base: BaseGradient | None = None,
    rule: Rule | None = None,
    params: PyTree | None = None,
    max_skipped: int = 0,
    average_from: float | None = None,
    early_stopping: EarlyStopping | None = None,
    checkpoint: Checkpoint | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
    mesh: Mesh | Literal["all"] | None = None,
    throw: bool = False,
) -> tuple[FitResult, ...]:
    """Several independent fits side by side, in one compiled program.

    Fit `k` is `fit` with `jax.random.split(key, num_fits)[k]`, to rounding. One that diverges, converges or is stopped
    waits for the others. Options are those of `fit`; all fits share one checkpoint, and the callback is called for each
    fit that is going, and ends that one alone.

    Args:
        model: as for `fit`.
        family: as for `fit`.
        num_fits: how many.
        key: split into one for each fit.
        variates: as for `fit`.
        optimizer: as for `fit`.
        steps: of each fit.
        sampler: as for `fit`.
        base: as for `fit`.
        rule: as for `fit`.
        params: to start all of them from.
        max_skipped: as for `fit`; each fit counts its own.
        average_from: as for `fit`.
        early_stopping: as for `fit`; each fit is judged alone.
        checkpoint: one file for all of them.
        callback: as for `fit`; `FitProgress.fit` tells which.
        progress: as for `fit`.
        mesh: as for `fit`.
        throw: raise, when all have ended, if one has diverged.

    Returns:
        One result a fit. The seconds of each are those of all together.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> family = quell.MeanField(2)
        >>> results = quell.fit_many(model, family, variates=(), num_fits=3, steps=50, key=jax.random.key(0))
        >>> [result.history.num_steps for result in results]
        [50, 50, 50]
    """
    options = FitOptions(
        variates="auto" if isinstance(variates, str) and variates == "auto" else list_variates(variates),
        optimizer=optimizer,
        steps=steps,
        sampler=sampler,
        base=base,
        rule=rule,
        params=params,
        max_skipped=max_skipped,
        average_from=average_from,
        early_stopping=early_stopping,
        checkpoint=checkpoint,
        callback=callback,
        progress=progress,
        mesh=checked_mesh(mesh),
    )
    results = run_plan(options.plan(model, family, split_key(key, num_fits)))
    _report_divergence(results, steps=steps, throw=throw)
    return tuple(results)


def _report_divergence(results: Sequence[FitResult], *, steps: int, throw: bool) -> None:
    """Warn or raise if a fit has diverged; of several, say which."""
    lost = [number for number, result in enumerate(results) if result.status is Status.DIVERGED]
    if not lost:
        return
    which = (
        "The fit" if len(results) == 1 else f"{len(lost)} of {len(results)} fits diverged; the first, number {lost[0]},"
    )
    message = f"{which} stopped after {results[lost[0]].history.num_steps} of {steps} steps. {Status.DIVERGED.value}"
    if throw:
        raise DivergenceError(message)
    warnings.warn(message, RuntimeWarning, stacklevel=3)
