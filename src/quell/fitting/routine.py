# SPDX-License-Identifier: Apache-2.0
"""`quell.fit`: a model and a family in, a fitted posterior out."""

import functools
import time
import warnings
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key, PyTree

from quell.checks import check_count, check_finite, check_key
from quell.combine import Rule
from quell.draw import Sampler
from quell.families import AbstractFamily
from quell.fitting.loop import LoopState, init_loop, run_loop
from quell.fitting.progress import progress_bar
from quell.fitting.result import FitResult
from quell.gradient import Gradient, GradientInfo, list_variates
from quell.history import History
from quell.models import AbstractModel
from quell.problem import Problem
from quell.status import DivergenceError, Status
from quell.variates import BaseGradient, ControlVariate, default_base, default_variates

DEFAULT_BATCH_SIZE = 100


def fit(
    model: AbstractModel,
    family: AbstractFamily,
    *,
    key: Key[Array, ""],
    variates: Iterable[ControlVariate] | None = None,
    optimizer: optax.GradientTransformation | None = None,
    steps: int = 2000,
    sampler: Sampler | None = None,
    base: BaseGradient | None = None,
    rule: Rule | None = None,
    params: PyTree | None = None,
    progress: bool | None = None,
    throw: bool = False,
) -> FitResult:
    """Fit a family to the posterior of a model with quiet gradients.

    Args:
        model: likelihood, prior and data.
        family: of the approximation.
        key: all randomness of the fit is a function of it.
        variates: control variates; by default the cheap ones that suit the problem, and `()` for none.
        optimizer: any optax optimiser of the loss `-ELBO / num_data`; by default Adam with a rate that falls
            from 0.05 to zero on a cosine.
        steps: how many to take.
        sampler: replicates and minibatches; by default one replicate with a minibatch of 100, or the full
            data where they are fewer.
        base: the gradient that the variates are added to; by default the one that suits the family.
        rule: how their weights are learned.
        params: to start from; the family's `init` by default.
        progress: show a bar; by default where somebody is watching.
        throw: raise on divergence instead of returning the last finite parameters with a warning.

    Returns:
        Parameters, history and status. Ctrl-C returns what was reached.

    Example:
        >>> import jax, quell
        >>> data = quell.paper.load("sonar")
        >>> model = quell.logistic_regression(data.features, data.labels)
        >>> result = quell.fit(model, quell.MeanField(model.dim), steps=20, key=jax.random.key(0))
        >>> result.status.name, result.history.num_steps
        ('COMPLETED', 20)
    """
    check_key(key)
    check_count("steps", steps)
    problem = Problem(model, family)
    gradient = Gradient(
        problem=problem,
        variates=default_variates(problem) if variates is None else list_variates(variates),
        base=base or default_base(problem),
        sampler=sampler or _default_sampler(model),
        rule=rule or Rule(),
    )
    optimizer = optimizer or _default_optimizer(steps)
    if not isinstance(optimizer, optax.GradientTransformation):
        raise TypeError(
            f"`optimizer` was given as {optimizer!r}. An optax optimiser was needed. "
            "Write for example `optimizer=optax.adam(0.01)`."
        )
    start = init_loop(gradient, optimizer, family.init() if params is None else _checked(params, family))
    began = time.perf_counter()
    state, pieces, interrupted = _run(gradient, optimizer, key, start, steps, progress)
    status = _status(state, interrupted=interrupted)
    result = FitResult(
        params=state.params,
        gradient=gradient,
        state=state.gradient,
        history=History.join(pieces, len(gradient.variates)),
        status=status,
        seconds=time.perf_counter() - began,
    )
    if status is Status.DIVERGED:
        message = f"The fit stopped after {result.history.num_steps} of {steps} steps. {status.value}"
        if throw:
            raise DivergenceError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return result


def _run(
    gradient: Gradient,
    optimizer: optax.GradientTransformation,
    key: Key[Array, ""],
    state: LoopState,
    steps: int,
    progress: bool | None,
) -> tuple[LoopState, list[GradientInfo], bool]:
    """Run the loop and keep what each chunk returned, so that an interruption loses only the last one."""
    pieces: list[GradientInfo] = []
    interrupted = False
    with progress_bar(steps, show=progress) as report:

        def after_chunk(now: LoopState, infos: GradientInfo) -> None:
            nonlocal state
            state = now
            pieces.append(infos)
            if infos.elbo.size:
                report(int(now.step), float(infos.elbo.mean()))

        try:
            run_loop(gradient, optimizer, key, state, num_steps=steps, after_chunk=after_chunk)
        except KeyboardInterrupt:
            interrupted = True
    return state, pieces, interrupted


@functools.cache
def _default_optimizer(steps: int) -> optax.GradientTransformation:
    """One object for each number of steps, so that a second fit finds the program that the first compiled."""
    return optax.adam(optax.cosine_decay_schedule(0.05, steps))


def _checked(params: PyTree, family: AbstractFamily) -> PyTree:
    """Refuse parameters to start from that are not finite numbers in the family's shape."""
    needed = jax.eval_shape(lambda: family.init())
    same = jax.tree.structure(needed) == jax.tree.structure(params)
    if not (same and jax.tree.map(jnp.shape, needed) == jax.tree.map(jnp.shape, params)):
        given = jax.tree.map(jnp.shape, params)
        raise ValueError(
            f"`params` were given with shapes {given}. {family} needed {jax.tree.map(jnp.shape, needed)}. "
            "Write for example `params=family.init()` or `params=result.params` of a fit with the same family."
        )
    arrays = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf, float)), params)
    for leaf in jax.tree.leaves(arrays):
        check_finite("params", leaf)
    return arrays


def _default_sampler(model: AbstractModel) -> Sampler:
    return Sampler(batch_size=DEFAULT_BATCH_SIZE if model.num_data > DEFAULT_BATCH_SIZE else None)


def _status(state: LoopState, *, interrupted: bool) -> Status:
    if interrupted:
        return Status.INTERRUPTED
    return Status.COMPLETED if bool(jax.device_get(state.is_finite)) else Status.DIVERGED
