# SPDX-License-Identifier: Apache-2.0
"""The weights that minimise the expected squared norm of the combined gradient, under a Normal-Wishart prior."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jax.typing import DTypeLike
from jaxtyping import Array, Float

Joint = Float[Array, "*leaf joint joint"]


class Moments(eqx.Module):
    r"""Second moments: \(E\,C^\top C\), \(E\,C^\top h\) and \(E\,h^\top h\)."""

    gram: Float[Array, "*leaf variate variate"]
    cross: Float[Array, "*leaf variate"]
    base: Float[Array, "*leaf"]

    @classmethod
    def from_joint(cls, joint: Joint) -> "Moments":
        """Split the joint matrix of inner products."""
        return cls(joint[..., 1:, 1:], joint[..., 1:, 0], joint[..., 0, 0])


class NormalWishart(eqx.Module):
    r"""Prior belief about the second moments of \((h, C)\).

    Args:
        gram: traces of the blocks \(V_{c_k c_l}\) of \(V_0\).
        cross: traces of the blocks \(V_{h c_k}\).
        strength: \(n_0\), how many samples the belief is worth. The best weights do not depend on it: it
            scales both sides of their equation alike.

    References: Geffner & Domke (2018), appendix, proof of theorem 4.2.
    """

    gram: Float[Array, "variate variate"]
    cross: Float[Array, "variate"]
    strength: float = 1.0

    def __check_init__(self) -> None:
        """Refuse a strength that is not positive, and traces that do not belong together."""
        if not self.strength > 0:
            raise ValueError(f"`strength` must be positive, got {self.strength}.")
        if self.gram.shape != (*self.cross.shape, *self.cross.shape):
            raise ValueError(
                f"`gram` must be a square matrix of the length of `cross`, got shapes {self.gram.shape} and "
                f"{self.cross.shape}."
            )


def isotropic(v0: float, *, num_params: int, num_variates: int, dtype: DTypeLike) -> NormalWishart:
    r"""The prior \(V_0 = v_0 I\), whose blocks have traces \(D v_0\) and zero."""
    gram = num_params * v0 * jnp.eye(num_variates, dtype=dtype)
    return NormalWishart(gram, jnp.zeros(num_variates, dtype))


def posterior(
    prior: NormalWishart, average: Moments, num_samples: float | Float[Array, ""]
) -> tuple[Float[Array, "variate variate"], Float[Array, "variate"]]:
    r"""Expected \(C^\top C\) and \(C^\top h\) of the next evaluation, given `num_samples` earlier ones.

    With \(\kappa = n_0/(n_0+M)\) these are \(\kappa/n_0\) times the prior's traces plus \(1-\kappa\) times the
    averages.
    """
    total = prior.strength + num_samples
    gram = (prior.gram + num_samples * average.gram) / total
    cross = (prior.cross + num_samples * average.cross) / total
    return gram, cross


_MARGIN = 10.0
"""A pivot of the Cholesky decomposition that is this many times the cutoff is no accident of rounding."""


def solve(prior: NormalWishart, average: Moments, num_samples: float | Float[Array, ""]) -> Float[Array, "variate"]:
    r"""Minimise the expected squared norm of \(h + Ca\) under the posterior.

    \(a = -(P/M + \overline{C^\top C})^{-1}(p/M + \overline{C^\top h})\). With a zero prior this is the
    empirical optimum of lemma 4.1; where the matrix is singular (duplicate or vanishing variates), the
    solution of least norm after scaling each variate to norm one.

    Args:
        prior: \(P\) and \(p\).
        average: of moments that must predate the draw being weighted.
        num_samples: \(M\).

    Returns:
        One weight per variate.

    Bias: none, because the weights do not see the current draw.
    Cost: a division for one variate, else a Cholesky decomposition of the size of the ensemble; where the matrix is
    singular, a symmetric eigendecomposition.

    References: Geffner & Domke (2018), theorem 4.2.
    """
    gram, cross = posterior(prior, average, num_samples)
    size = jnp.sqrt(jnp.diagonal(gram))
    unit = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 0.0)
    if cross.shape[0] == 1:
        return -unit * unit * cross
    matrix, right = unit[:, None] * gram * unit, -unit * cross
    root = jnp.linalg.cholesky(matrix)
    smallest = jnp.min(jnp.diagonal(root)) ** 2  # at least the smallest eigenvalue; NaN where there is no root
    is_regular = smallest > _MARGIN * _cutoff(matrix)
    return unit * jax.lax.cond(is_regular, _regular, _least_norm, matrix, root, right)


def _regular(
    matrix: Float[Array, "variate variate"], root: Float[Array, "variate variate"], right: Float[Array, "variate"]
) -> Float[Array, "variate"]:
    return cho_solve((root, True), right)


def _least_norm(
    matrix: Float[Array, "variate variate"], root: Float[Array, "variate variate"], right: Float[Array, "variate"]
) -> Float[Array, "variate"]:
    values, basis = jnp.linalg.eigh(matrix)
    cutoff = _cutoff(matrix)
    inverse = jnp.where(values > cutoff, 1.0 / jnp.maximum(values, cutoff), 0.0)
    return basis @ (inverse * (basis.T @ right))


def _cutoff(matrix: Float[Array, "variate variate"]) -> float:
    """Eigenvalues below are taken for zero."""
    return 10 * matrix.shape[0] * float(jnp.finfo(matrix.dtype).eps)


def expected_sq_norm(average: Moments, weights: Float[Array, "*leaf variate"]) -> Float[Array, ""]:
    r"""\(E\|h + Ca\|^2\) from moments, summed over leaves where there are several."""
    cross = jnp.einsum("...k,...k->...", weights, average.cross)
    gram = jnp.einsum("...k,...kl,...l->...", weights, average.gram, weights)
    return jnp.sum(average.base + 2.0 * cross + gram)
