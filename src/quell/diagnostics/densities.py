# SPDX-License-Identifier: Apache-2.0
"""Samples of the fitted distribution with their densities under p and q, over all data in bounded memory."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from quell.core.checks import check_count, check_key
from quell.core.tiers import tiered_jit
from quell.data.access import num_rows, row_blocks
from quell.evaluation import Problem
from quell.models import AbstractModel

DATA_CHUNK = 2**13
"""Number of data whose log-likelihood is computed at once."""

_CELLS = 2**18

MOST_DRAWS, LEAST_DRAWS, MOST_VALUES = 10_000, 1_000, 2**24
"""Of a sample that nobody gave a size: so many draws that k-hat comes to one verdict with every key, unless that takes
more log-likelihoods of single data than the last."""


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

    def taken(self, places: Int[np.ndarray, "taken"]) -> "ScoredSample":
        """Some of the samples."""
        latents = jax.device_put(np.asarray(self.latents)[places])
        return ScoredSample(latents, self.log_p[places], self.log_q[places], self.resolution)


def has_many_draws(problem: Problem) -> bool:
    """Whether data are so few that a sample has all of its draws."""
    return sample_size(problem) == MOST_DRAWS


def sample_size(problem: Problem) -> int:
    """Size of a sample that tells much and takes little time."""
    return min(MOST_DRAWS, max(LEAST_DRAWS, MOST_VALUES // problem.model.num_data))


def score_sample(key: Key[Array, ""], problem: Problem, params: PyTree, num: int) -> ScoredSample:
    """Draw from the fitted distribution, and compute both densities at each sample.

    Chunks of data are added up in double precision, whatever JAX's precision.

    Args:
        key: for the samples.
        problem: model and family.
        params: of the family.
        num: number of samples.

    Cost: `num` evaluations of the likelihood of all data, in chunks of both.
    """
    check_key(key)
    check_count("num", num)
    latents, log_q, prior = _draws(problem, params, key, num)
    log_q, log_p = np.asarray(log_q), np.array(prior, np.float64)
    for _, rows in row_blocks(problem.model.data, DATA_CHUNK):
        log_p += np.asarray(_likelihoods(jnp.sum, problem.model, rows, latents))
    size = np.nan_to_num(np.maximum(np.abs(log_p), np.abs(log_q)), posinf=0.0).max()
    return ScoredSample(latents, log_p, log_q.astype(np.float64), float(8 * np.finfo(log_q.dtype).eps * size))


def joined(samples: list[ScoredSample]) -> ScoredSample:
    """One sample of several."""
    parts = zip(*((one.latents, one.log_p, one.log_q) for one in samples), strict=True)
    latents, log_p, log_q = map(np.concatenate, parts)
    return ScoredSample(jax.device_put(latents), log_p, log_q, max(one.resolution for one in samples))


def log_likelihoods(model: AbstractModel, latents: Float[Array, "sample latent"]) -> Float[np.ndarray, "sample datum"]:
    """Log-likelihood of each datum at each sample, in memory; data on disk are read in blocks."""
    blocks = row_blocks(model.data, model.num_data)
    return np.concatenate([np.asarray(_likelihoods(jnp.asarray, model, rows, latents)) for _, rows in blocks], axis=1)


@tiered_jit
def _draws(problem: Problem, params: PyTree, key: Key[Array, ""], num: int) -> tuple[Array, Array, Array]:
    """Latents, as `draw_latents` makes them, with their density and that of the prior."""
    family = problem.family
    algebra = family.algebra(params, family.noise(key, num, jax.tree.leaves(params)[0].dtype))
    latents = algebra.latents(family.sampling)
    prior = jax.lax.map(problem.model.prior.log_prob, latents, batch_size=_batch_size(latents, DATA_CHUNK))
    return latents, algebra.log_probs(family.sampling), prior


@tiered_jit
def _likelihoods(
    reduce: Callable[[Array], Array], model: AbstractModel, rows: PyTree, latents: Float[Array, "sample latent"]
) -> Float[Array, "sample *datum"]:
    def one(z: Float[Array, "latent"]) -> Float[Array, "*datum"]:
        return reduce(model.log_likelihood(z, rows))

    return jax.lax.map(one, latents, batch_size=_batch_size(latents, num_rows(rows)))


def _batch_size(latents: Float[Array, "sample latent"], num_data: int) -> int:
    """Number of samples that are evaluated at once."""
    return max(1, min(latents.shape[0], _CELLS // num_data))
