# SPDX-License-Identifier: Apache-2.0
"""Samples of the fitted distribution with their densities under p and q, over all data in bounded memory."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from quell.core.compilation import quick_jit
from quell.data.access import most_rows, num_rows, row_blocks, slice_rows
from quell.evaluation import Problem
from quell.families.sample import draw_latents
from quell.models import AbstractModel

DATA_CHUNK = 2**13
"""Number of data whose log-likelihood is computed at once."""

_CELLS = 2**18


@dataclasses.dataclass(frozen=True)
class ScoredSample:
    r"""Samples from \(q\) and their log densities.

    Attributes:
        latents: flat, one row per sample.
        log_p: \(\log p(x, z)\) over all data.
        log_q: \(\log q(z)\).
        resolution: size of the rounding error of a log density.
    """

    latents: Float[Array, "sample latent"]
    log_p: Float[np.ndarray, "sample"]
    log_q: Float[np.ndarray, "sample"]
    resolution: float

    @property
    def log_ratios(self) -> Float[np.ndarray, "sample"]:
        """Log importance ratios."""
        return self.log_p - self.log_q


def score_sample(key: Key[Array, ""], problem: Problem, params: PyTree, num: int) -> ScoredSample:
    """Draw from the fitted distribution, and compute both densities at each sample.

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: number of samples.

    Cost: `num` evaluations of the likelihood of all data, in chunks of both.
    """
    latents = draw_latents(key, problem.family, params, num)
    likelihood, prior, log_q = jax.device_get(_densities(problem, params, latents))
    log_p = likelihood.astype(np.float64).sum(axis=1) + prior
    size = np.nan_to_num(np.maximum(np.abs(log_p), np.abs(log_q)), posinf=0.0).max()
    return ScoredSample(latents, log_p, log_q.astype(np.float64), float(8 * np.finfo(log_q.dtype).eps * size))


def log_likelihoods(model: AbstractModel, latents: Float[Array, "sample latent"]) -> Float[np.ndarray, "sample datum"]:
    """Log-likelihood of each datum at each sample, in memory; data on disk are read in blocks."""
    blocks = row_blocks(model.data, model.num_data)
    return np.concatenate([np.asarray(_likelihoods(model, rows, latents)) for _, rows in blocks], axis=1)


@quick_jit
def _densities(problem: Problem, params: PyTree, latents: Float[Array, "sample latent"]) -> tuple[Array, Array, Array]:
    """The log-likelihood by chunk of data, log-prior and log density, one row per sample."""
    model = problem.model
    size = min(model.num_data, DATA_CHUNK, most_rows(model.data))
    starts = jnp.arange(0, model.num_data, size)
    batch = max(1, min(latents.shape[0], _CELLS // size))

    def of_chunk(start: Int[Array, ""]) -> Float[Array, "sample"]:
        first = jnp.minimum(start, model.num_data - size)
        rows, counts = slice_rows(model.data, first, size), first + jnp.arange(size) >= start
        return jax.lax.map(lambda z: jnp.sum(model.log_likelihood(z, rows), where=counts), latents, batch_size=batch)

    def one(z: Float[Array, "latent"]) -> tuple[Array, Array]:
        return model.prior.log_prob(z), problem.family.log_prob(params, z)

    return jax.lax.map(of_chunk, starts).T, *jax.lax.map(one, latents, batch_size=batch)


@quick_jit
def _likelihoods(
    model: AbstractModel, rows: PyTree, latents: Float[Array, "sample latent"]
) -> Float[Array, "sample datum"]:
    batch = max(1, min(latents.shape[0], _CELLS // num_rows(rows)))
    return jax.lax.map(lambda z: model.log_likelihood(z, rows), latents, batch_size=batch)
