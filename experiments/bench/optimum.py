# SPDX-License-Identifier: Apache-2.0
"""The best ELBO of a linear predictor under a Gaussian family, by natural-gradient steps on exact expectations."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.bench.gaussian import Gaussian
from quell.core.compilation import quick_jit
from quell.data.access import row_blocks
from quell.models import LinearPredictor

Density = Callable[[Array, Array], Array]

_NUM_NODES = 20
_CHUNK = 2**13
_STEP = 0.7
_MOST_STEPS = 300
_TOLERANCE = 1e-5


def best_gaussian(model: LinearPredictor, *, full_rank: bool) -> Gaussian:
    r"""The Gaussian at which mean and covariance solve the conditions of the optimum, for a standard normal prior.

    With \(t_i = x_i^\top Z\), these are \(\mu = \sum_i E f_i'(t_i)\,x_i\) and
    \(\Sigma^{-1} = I - \sum_i E f_i''(t_i)\,x_i x_i^\top\), of which a mean-field family keeps the diagonal.

    Args:
        model: with a standard normal prior.
        full_rank: whether the Gaussian has all correlations.

    Raises:
        RuntimeError: if the steps do not settle.
    """
    mean, precision = np.zeros(model.dim), 100.0 * np.eye(model.dim)
    for _ in range(_MOST_STEPS):
        here = _gaussian(mean, precision, full_rank)
        slope, curvature = _expectations(model, here)
        target = np.eye(model.dim) - curvature
        precision = precision + _STEP * (target - precision)
        step = _STEP * np.linalg.solve(precision, slope - mean)
        mean = mean + step
        scaled = math.sqrt(step @ precision @ step)
        if scaled < 1e-3 and np.abs(target - precision).max() < _TOLERANCE * np.abs(precision).max():
            return _gaussian(mean, precision, full_rank)
    raise RuntimeError(
        f"The optimum of {model} was not found in {_MOST_STEPS} steps. Features of moderate size were needed. "
        "Scale them to [-1, 1]."
    )


def _gaussian(mean: np.ndarray, precision: np.ndarray, full_rank: bool) -> Gaussian:
    if not full_rank:
        return Gaussian(jnp.asarray(mean), jnp.asarray(1.0 / np.sqrt(np.diagonal(precision))))
    return Gaussian(jnp.asarray(mean), jnp.asarray(np.linalg.cholesky(np.linalg.inv(precision))))


def _expectations(model: LinearPredictor, here: Gaussian) -> tuple[np.ndarray, np.ndarray]:
    """The sums of slopes and of curvatures over the data, added up in double precision."""
    parts = []
    for _, rows in row_blocks(model.data, _CHUNK):
        parts.append(_chunk_expectations(model.log_density, rows.features, rows.targets, here))
    slopes, curvatures = zip(*jax.device_get(parts), strict=True)
    return np.array(slopes, np.float64).sum(axis=0), np.array(curvatures, np.float64).sum(axis=0)


@quick_jit
def _chunk_expectations(
    log_density: Density, features: Float[Array, "datum latent"], targets: Float[Array, "datum"], here: Gaussian
) -> tuple[Float[Array, "latent"], Float[Array, "latent latent"]]:
    first = jax.grad(log_density)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NUM_NODES)
    spread = features @ here.scale if here.scale.ndim == 2 else features * here.scale
    predictors = (features @ here.mean)[:, None] + jnp.linalg.norm(spread, axis=1)[:, None] * jnp.asarray(nodes)
    weights = jnp.asarray(weights / math.sqrt(2 * math.pi))

    def expect(function: Density) -> Float[Array, "datum"]:
        return jax.vmap(jax.vmap(function, (0, None)))(predictors, targets) @ weights

    slope, curvature = expect(first), expect(jax.grad(first))
    return slope @ features, (features.T * curvature) @ features
