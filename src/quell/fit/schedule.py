# SPDX-License-Identifier: Apache-2.0
"""A rate that falls as noise must be averaged out."""

import functools

import optax

from quell.core.checks import check_positive


@functools.cache
def harmonic_schedule(steps: int | float, init_value: int | float = 1.0) -> optax.Schedule:
    r"""The rate \(\rho_t = \rho_0 / (1 + t/\tau)\) for natural-gradient steps with noise.

    Near the optimum a natural-gradient step is \(e \leftarrow (1-\rho) e + \rho\,\text{noise}\). A rate that falls as
    \(\tau/t\) averages the noise of the last \(t/\tau\)th part of the steps and forgets the start as \(t^{-\tau}\);
    what is left of the noise falls as \(\tau/2t\).

    Args:
        steps: \(\tau\): a small one averages more, a large one forgets the start sooner.
        init_value: \(\rho_0\).

    Returns:
        A schedule for `quell.natural_gradient` or any optax optimiser; the same object for the same numbers.

    References: Robbins & Monro (1951); Hoffman et al. (2013), "Stochastic variational inference".
    """
    check_positive("steps", float(steps))
    check_positive("init_value", float(init_value))
    return lambda count: init_value / (1.0 + count / steps)
