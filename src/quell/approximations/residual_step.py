# SPDX-License-Identifier: Apache-2.0
"""One step of least squares from gradients to a quadratic, whose size needs no tuning."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from quell.models.quadratic import AbstractCurvature, DenseCurvature, DiagonalCurvature, Quadratic


class Residuals(NamedTuple):
    r"""What a quadratic does not explain of the gradients at a few latents.

    Args:
        rest: gradient less the quadratic's gradient.
        step: latent less mean, \(z - \mu\).
        relative: the same over the variance of each coordinate. Whitening by all of \(\Sigma^{-1}\) would learn faster
            where coordinates depend on each other, and blow up where a triangular scale is nearly singular, as it
            is on the way of many fits.
    """

    rest: Float[Array, "sample latent"]
    step: Float[Array, "sample latent"]
    relative: Float[Array, "sample latent"]


def learn_dense(quadratic: Quadratic, seen: Residuals, rate: float) -> Quadratic:
    r"""Move slope and matrix towards the residuals.

    With \(x\) the step in standard deviations, and a one for the slope, the gain is \(\eta / (1 + \eta \|x\|^2)\), the
    step's norm being that of all replicates' products: large rates make the residual zero, and none overshoots.
    """
    gram = 1.0 + seen.step @ seen.relative.T
    gain = rate / (1.0 + rate * jnp.linalg.norm(gram) / gram.shape[0])
    missing = seen.rest.T @ seen.relative / gram.shape[0]
    matrix = quadratic.curvature.matmul(jnp.eye(missing.shape[0], dtype=missing.dtype))
    return _moved(
        quadratic, gain * jnp.mean(seen.rest, axis=0), DenseCurvature(matrix + 0.5 * gain * (missing + missing.T))
    )


def learn_diagonal(quadratic: Quadratic, seen: Residuals, rate: float) -> Quadratic:
    """As `learn_dense`, each coordinate by itself."""
    size = 1.0 + jnp.mean(seen.step * seen.relative, axis=0)
    gain = rate / (1.0 + rate * size)
    values = quadratic.curvature.diagonal() + gain * jnp.mean(seen.rest * seen.relative, axis=0)
    return _moved(quadratic, gain * jnp.mean(seen.rest, axis=0), DiagonalCurvature(values))


def _moved(quadratic: Quadratic, more_slope: Float[Array, "latent"], curvature: AbstractCurvature) -> Quadratic:
    return Quadratic(quadratic.anchor, quadratic.constant, quadratic.slope + more_slope, curvature)
