# SPDX-License-Identifier: Apache-2.0
"""The best ELBO that a full-rank Gaussian can reach in the paper's logistic regressions, to double precision."""

import math

import numpy as np
from jaxtyping import Float

from quell.paper.datasets import Dataset

_NUM_NODES = 60
_STEP = 0.7
_MOST_STEPS = 500
_TOLERANCE = 1e-11


def optimum(dataset: Dataset) -> float:
    r"""Maximise the exact ELBO by natural-gradient steps in NumPy.

    With rows \(u_i = y_i x_i\) and \(t_i = u_i^\top Z\) a one-dimensional Gaussian, the optimum solves
    \(\mu = \sum_i E\,s(-t_i)\,u_i\) and \(\Sigma^{-1} = I + \sum_i E\,s(t_i)s(-t_i)\,u_i u_i^\top\), with \(s\) the
    logistic function. The ELBO is concave in the mean and the Cholesky factor, so this is its only maximum.

    Raises:
        RuntimeError: if the steps do not settle.
    """
    rows = dataset.labels[:, None] * dataset.features
    dim = rows.shape[1]
    mean, precision = np.zeros(dim), np.eye(dim)
    for _ in range(_MOST_STEPS):
        predictors, weights = _predictors(rows, mean, precision)
        tails = _sigmoid(-predictors)
        target = np.eye(dim) + (rows.T * ((tails * (1.0 - tails)) @ weights)) @ rows
        precision = precision + _STEP * (target - precision)
        step = np.linalg.solve(precision, rows.T @ (tails @ weights) - mean)
        mean = mean + _STEP * step
        if max(np.abs(step).max(), np.abs(target - precision).max()) < _TOLERANCE * np.abs(precision).max():
            return _elbo(rows, mean, precision)
    raise RuntimeError(
        f"The optimum of {dataset.name} was not found in {_MOST_STEPS} steps. Features of moderate size were needed. "
        "Scale them to [-1, 1]."
    )


def _predictors(
    rows: Float[np.ndarray, "datum latent"], mean: Float[np.ndarray, "latent"], precision: Float[np.ndarray, "a a"]
) -> tuple[Float[np.ndarray, "datum node"], Float[np.ndarray, "node"]]:
    """Quadrature nodes of each datum's predictor, and their weights."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
    variance = np.sum(rows * np.linalg.solve(precision, rows.T).T, axis=1)
    return (rows @ mean)[:, None] + np.sqrt(variance)[:, None] * nodes, weights / math.sqrt(2 * math.pi)


def _elbo(
    rows: Float[np.ndarray, "datum latent"], mean: Float[np.ndarray, "latent"], precision: Float[np.ndarray, "a a"]
) -> float:
    predictors, weights = _predictors(rows, mean, precision)
    data = np.sum(-np.logaddexp(0.0, -predictors) @ weights)
    divergence = 0.5 * (np.trace(np.linalg.inv(precision)) + mean @ mean - len(mean) + np.linalg.slogdet(precision)[1])
    return float(data - divergence)


def _sigmoid(values: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return 0.5 * (1.0 + np.tanh(0.5 * values))
