# SPDX-License-Identifier: Apache-2.0
"""The best Gaussian for a generalized linear model, by fixed-point iteration on exact expectations."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from quell.core.compilation import quick_jit

LogDensity = Callable[[Array, Array], Array]
"""Log density of a target given its linear predictor: a function of predictor and target."""

_CHUNK = 2**13
_STEP = 0.7
_MOST_STEPS = 500
_START_PRECISION = 100.0


class Optimum(NamedTuple):
    """The maximum of the ELBO over a Gaussian family.

    Attributes:
        elbo: in nats.
        mean: of the Gaussian.
        covariance: of the Gaussian; diagonal for a mean-field family.
    """

    elbo: float
    mean: Float[np.ndarray, "latent"]
    covariance: Float[np.ndarray, "latent latent"]


class _Expectations(NamedTuple):
    """Sums over the data of the expected log density and its first two derivatives in the latent."""

    value: Float[np.ndarray, ""]
    gradient: Float[np.ndarray, "latent"]
    hessian: Float[np.ndarray, "latent latent"]


def find_optimum(
    log_density: LogDensity,
    features: Float[np.ndarray, "datum latent"],
    targets: Float[np.ndarray, "datum"],
    *,
    full_rank: bool = True,
    num_nodes: int = 60,
    tolerance: float = 1e-11,
) -> Optimum:
    r"""Maximise the exact ELBO under a standard normal prior by natural-gradient steps, in double precision.

    With \(t_i = x_i^\top Z\) a one-dimensional Gaussian, the optimum solves \(\mu = \sum_i E f_i'(t_i)\,x_i\) and
    \(\Sigma^{-1} = I - \sum_i E f_i''(t_i)\,x_i x_i^\top\), of which a mean-field family keeps the diagonal. The
    expectations are Gauss-Hermite sums. For a concave log density this is the only maximum.

    Args:
        log_density: \(f\), of a scalar predictor and a scalar target.
        features: one row per datum.
        targets: one per datum.
        full_rank: whether the Gaussian has all correlations.
        num_nodes: of the quadrature.
        tolerance: largest change of mean and precision in the last step, relative to the largest precision.

    Raises:
        RuntimeError: if the iteration does not converge.
    """
    dim = features.shape[1]
    mean, precision = np.zeros(dim), _START_PRECISION * np.eye(dim)
    for _ in range(_MOST_STEPS):
        found = _expectations(log_density, features, targets, mean, np.linalg.inv(precision), num_nodes)
        target = np.eye(dim) - (found.hessian if full_rank else np.diag(np.diagonal(found.hessian)))
        precision = precision + _STEP * (target - precision)
        step = np.linalg.solve(precision, found.gradient - mean)
        mean = mean + _STEP * step
        if max(np.abs(step).max(), np.abs(target - precision).max()) < tolerance * np.abs(precision).max():
            covariance = np.linalg.inv(precision)
            data = _expectations(log_density, features, targets, mean, covariance, num_nodes).value
            return Optimum(float(data - _divergence(mean, covariance)), mean, covariance)
    raise RuntimeError(f"No optimum was found in {_MOST_STEPS} steps; try features scaled to [-1, 1].")


def _divergence(mean: Float[np.ndarray, "latent"], covariance: Float[np.ndarray, "latent latent"]) -> float:
    """Kullback-Leibler divergence from the prior."""
    return 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - np.linalg.slogdet(covariance)[1])


def _expectations(
    log_density: LogDensity,
    features: Float[np.ndarray, "datum latent"],
    targets: Float[np.ndarray, "datum"],
    mean: Float[np.ndarray, "latent"],
    covariance: Float[np.ndarray, "latent latent"],
    num_nodes: int,
) -> _Expectations:
    """Sum over chunks of the data, in double precision whatever the precision of the features."""
    scale, total = np.linalg.cholesky(covariance), None
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    rule = nodes, weights / math.sqrt(2 * math.pi)
    with jax.enable_x64(True):
        for start in range(0, len(targets), _CHUNK):
            rows = (np.asarray(array[start : start + _CHUNK], np.float64) for array in (features, targets))
            part = _chunk_expectations(log_density, *(jnp.asarray(array) for array in (*rows, mean, scale, *rule)))
            total = part if total is None else jax.tree.map(jnp.add, total, part)
        return _Expectations(*(np.asarray(value) for value in jax.device_get(total)))


@quick_jit
def _chunk_expectations(
    log_density: LogDensity,
    features: Float[Array, "datum latent"],
    targets: Float[Array, "datum"],
    mean: Float[Array, "latent"],
    scale: Float[Array, "latent latent"],
    nodes: Float[Array, "node"],
    weights: Float[Array, "node"],
) -> tuple[Float[Array, ""], Float[Array, "latent"], Float[Array, "latent latent"]]:
    spread = jnp.linalg.norm(features @ scale, axis=1)
    predictors = (features @ mean)[:, None] + spread[:, None] * nodes
    first = jax.grad(log_density)

    def expect(function: LogDensity) -> Float[Array, "datum"]:
        return jax.vmap(jax.vmap(function, (0, None)))(predictors, targets) @ weights

    gradient, hessian = expect(first), expect(jax.grad(first))
    return jnp.sum(expect(log_density)), gradient @ features, (features.T * hessian) @ features
