# SPDX-License-Identifier: Apache-2.0
"""Gamma, beta and low-rank Gaussian families: exact expectations, by quadrature in the noise and in the latent."""

import functools
import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

import quell
from exact import expectation, gauss_hermite, minibatches
from quell.estimators import GeneralizedReparameterization
from quell.evaluation import Evaluation
from quell.families import AbstractFamily, Beta, BetaParams, Gamma, GammaParams, LowRank, LowRankParams
from quell.families.gamma_quantile import log_gamma_quantile
from tolerances import DIFFERENCES, EXACT, EXPECTATION, ROUNDING, SINGLE

FEATURES = np.array([[1.0, 0.3], [0.4, 1.1], [0.7, 0.9]])
COUNTS = np.array([2.0, 0.0, 3.0])
CHANCES = np.array([0.9, 0.3, 0.6])
SUCCESSES = np.array([1.0, 0.0, 1.0])

TERMS = (quell.Data(), quell.Prior(), quell.Variational(), quell.Score())
ESTIMATORS = (
    quell.ScoreFunction(),
    quell.ScoreFunction(full_data=True),
    quell.Reparameterization(),
    quell.Reparameterization("implicit"),
    GeneralizedReparameterization(),
    GeneralizedReparameterization(full_data=True),
    quell.ClosedForm(),
    quell.ClosedForm(full_data=True),
)


class Case(NamedTuple):
    """A problem, and two quadratures: of the noise, and of the latent with the density left out."""

    problem: quell.Problem
    params: tuple
    noise: tuple[np.ndarray, np.ndarray]
    latent: tuple[np.ndarray, np.ndarray]


def products(nodes: np.ndarray, weights: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The product rule in several dimensions."""
    grid = np.array(list(itertools.product(nodes, repeat=dim)))
    return grid, np.prod(np.array(list(itertools.product(weights, repeat=dim))), axis=1)


def unit_interval(num: int) -> tuple[np.ndarray, np.ndarray]:
    """The tanh-sinh rule on (0, 1): logarithms at the ends do it no harm."""
    s = np.linspace(-3.1, 3.1, num)
    u = scipy.special.expit(np.pi * np.sinh(s))
    return u, (s[1] - s[0]) * np.pi * np.cosh(s) * u * scipy.special.expit(-np.pi * np.sinh(s))


def half_line(num: int) -> tuple[np.ndarray, np.ndarray]:
    """The double exponential rule on (0, inf), for densities with an exponential tail."""
    s = np.linspace(-4.0, 4.0, num)
    z = np.exp(s - np.exp(-s))
    return z, (s[1] - s[0]) * z * (1.0 + np.exp(-s))


def rates(z, batch):
    """Counts whose rates are positive combinations of positive latents."""
    rate = batch["x"] @ z
    return batch["y"] * jnp.log(rate) - rate


def chances(z, batch):
    """Successes where a chance and the latent must both come true."""
    chance = batch["x"] * z[0]
    return batch["y"] * jnp.log(chance) + (1.0 - batch["y"]) * jnp.log1p(-chance)


@functools.cache
def cases() -> dict[str, Case]:
    positive = quell.Model(rates, quell.NormalPrior(1.0, 0.8), {"x": FEATURES, "y": COUNTS}, 2)
    between = quell.Model(chances, lambda z: 0.5 * jnp.log(z[0]) - z[0], {"x": CHANCES, "y": SUCCESSES}, 1)
    line = quell.poisson_regression(0.4 * FEATURES, COUNTS.astype(int), prior=quell.NormalPrior(0.1, 0.7))
    low_rank = LowRankParams(jnp.array([0.3, -0.2]), jnp.log(jnp.array([0.6, 0.5])), jnp.array([[0.4], [-0.5]]))
    return {
        "gamma": Case(
            quell.Problem(positive, Gamma(2)),
            GammaParams(jnp.log(jnp.array([0.7, 2.3])), jnp.log(jnp.array([0.9, 1.6]))),
            products(*unit_interval(40), 2),
            products(*half_line(60), 2),
        ),
        "beta": Case(
            quell.Problem(between, Beta(1)),
            BetaParams(jnp.log(jnp.array([0.8])), jnp.log(jnp.array([2.4]))),
            products(*unit_interval(40), 2),
            products(*unit_interval(60), 1),
        ),
        "low-rank": Case(
            quell.Problem(line, LowRank(2, rank=1)), low_rank, gauss_hermite(3), scaled_hermite(low_rank)
        ),
    }
