# SPDX-License-Identifier: Apache-2.0
"""`quell.sweep`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Unpack

import optax
from jaxtyping import Array, Key

from quell.evaluation import Problem
from quell.families import AbstractFamily
from quell.fit.options import SweepKeywords, shows_options
from quell.models import AbstractModel
from quell.sweep.plan import SweepPlan
from quell.sweep.rates import Optimizer
from quell.sweep.result import SweepResult
from quell.variates import ControlVariate


@shows_options(SweepKeywords)
def sweep(
    model: AbstractModel,
    family: AbstractFamily,
    *,
    learning_rates: Iterable[float],
    key: Key[Array, ""],
    subsets: Iterable[str | Iterable[ControlVariate]] = ("default",),
    num_seeds: int = 4,
    optimizer: Optimizer = optax.adam,
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[SweepKeywords],
) -> SweepResult:
    """Fit with every subset of variates, at every learning rate, from several seeds.

    The fits of a subset are one compiled program: the rate is a number in the optimiser's state. Seed `k` at a rate is
    `quell.fit` with `optimizer(rate)` and `jax.random.split(key, num_seeds)[k]`, to rounding; so all subsets and rates
    see the same draws. With several local devices, each has its share of the fits. With several processes
    (`jax.distributed`), each has its share of the subsets, and all return the table.

    Args:
        model: likelihood, prior and data.
        family: of the approximation.
        learning_rates: positive numbers.
        key: all randomness is a function of it.
        subsets: names, each `none`, `default` (see `quell.default_variates`), `S4` to `S7`, `c1` to `c7` or a sum such
            as `c1+c7`; and tuples of control variates.
        num_seeds: fits per subset and rate.
        optimizer: a function of the rate, for example `optax.adam`, or with a schedule
            `lambda rate: optax.adam(optax.cosine_decay_schedule(rate, 2000))`.
        out: folder for finished subsets, the checkpoint of the running one, and the table as `sweep.json` and
            `sweep.csv`. The same call with the same folder resumes it, and more subsets may be added; other
            settings are refused.
        options: `steps`, `sampler`, `base`, `rule` and `progress` of `quell.FitOptions`, for each fit.

    Returns:
        One row per subset and rate, with the ELBO where the fits ended: exact where there is a way, else sampled.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the folder holds what is done.

    Cost: that of all fits side by side; each device holds the data, and the states of its fits.

    Example:
        >>> import jax, quell
        >>> model = quell.logistic_regression([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]], [0, 1, 1])
        >>> options = dict(learning_rates=(0.001, 0.1), subsets=("none", "c7"), num_seeds=2, steps=100)
        >>> result = quell.sweep(model, quell.MeanField(2), key=jax.random.key(0), **options)
        >>> len(result.rows), result.best.learning_rate
        (4, 0.1)
    """
    plan = SweepPlan.of(
        key,
        Problem(model, family),
        learning_rates=learning_rates,
        subsets=subsets,
        num_seeds=num_seeds,
        optimizer=optimizer,
        **options,
    )
    return plan.run(None if out is None else Path(out))
