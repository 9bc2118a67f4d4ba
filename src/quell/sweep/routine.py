# SPDX-License-Identifier: Apache-2.0
"""`quell.sweep`."""

import os
from collections.abc import Iterable
from pathlib import Path

import optax
from jaxtyping import Array, Key

from quell.combine import Rule
from quell.evaluation import Sampler
from quell.families import AbstractFamily
from quell.gradient import BaseGradient
from quell.models import AbstractModel
from quell.sweep.plan import SweepPlan
from quell.sweep.rates import Optimizer
from quell.sweep.result import SweepResult
from quell.variates import ControlVariate


def sweep(
    model: AbstractModel,
    family: AbstractFamily,
    *,
    learning_rates: Iterable[float],
    key: Key[Array, ""],
    subsets: Iterable[str | Iterable[ControlVariate]] = ("default",),
    num_seeds: int = 4,
    optimizer: Optimizer = optax.adam,
    steps: int = 2000,
    sampler: Sampler | None = None,
    base: BaseGradient | None = None,
    rule: Rule | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
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
        num_seeds: fits for each subset and rate.
        optimizer: a function of the rate, for example `optax.adam`, or with a schedule
            `lambda rate: optax.adam(optax.cosine_decay_schedule(rate, 2000))`.
        steps: of each fit.
        sampler: as for `quell.fit`.
        base: as for `quell.fit`.
        rule: as for `quell.fit`.
        out: folder for finished subsets, the one on its way, and the table as `sweep.json` and `sweep.csv`. The same
            call with the same folder goes on where it was, and more subsets may be added; other settings are refused.
        progress: show a bar for each subset; by default where somebody is watching.

    Returns:
        A row for each subset and rate, with the ELBO where the fits ended: exact where there is a way, else sampled.

    Raises:
        KeyboardInterrupt: on Ctrl-C; the folder holds what was reached.

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
        model,
        family,
        learning_rates=learning_rates,
        subsets=subsets,
        num_seeds=num_seeds,
        key=key,
        optimizer=optimizer,
        steps=steps,
        sampler=sampler,
        base=base,
        rule=rule,
        progress=progress,
    )
    return plan.run(None if out is None else Path(out))
