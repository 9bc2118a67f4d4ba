# SPDX-License-Identifier: Apache-2.0
"""Exponential averages of the second moments of base gradient and variates.

Everything here is arrays: the joint matrix of inner products has the base gradient as row and column 0 and
the variates after it. Where weights are learned by leaf, there is one matrix for each leaf of the parameters.
"""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

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


class Held(eqx.Module):
    """What is kept between the steps at which inner products are taken.

    Args:
        step: number of steps so far.
        joint: the latest inner products.
    """

    step: Int[Array, ""]
    joint: Joint


class MomentState(eqx.Module):
    r"""What has been seen: \(\sum_s \gamma(1-\gamma)^{t-s} E_s\), and the same sum of ones.

    Args:
        total: decayed sum of joint moments.
        mass: decayed sum of the weights, entry by entry, because a variate that was dropped at a step
            leaves no trace there. Their ratio is the bias-corrected average.
        held: between the steps at which inner products are taken; `None` where each step takes them.
    """

    total: Joint
    mass: Joint
    held: Held | None = None


def init_moments(num_variates: int, dtype: DTypeLike, *, num_leaves: int | None = None) -> MomentState:
    """Nothing seen yet; for one set of weights, or for one per leaf."""
    leaves = () if num_leaves is None else (num_leaves,)
    zeros = jnp.zeros((*leaves, num_variates + 1, num_variates + 1), dtype)
    return MomentState(zeros, zeros)


def observe(state: MomentState, joint: Joint, *, decay: float) -> MomentState:
    r"""Take in the moments of one step, \(\bar E_t = (1-\gamma)\bar E_{t-1} + \gamma \hat E_t\).

    Args:
        state: of the steps before.
        joint: inner products of this step's base gradient and variates; rows that are not finite are left out.
        decay: \(\gamma\).

    References: Geffner & Domke (2018), section 4.2.
    """
    usable = finite_rows(joint)
    both = usable[..., :, None] & usable[..., None, :] & jnp.isfinite(joint)
    total = (1.0 - decay) * state.total + decay * jnp.where(both, joint, 0.0)
    mass = (1.0 - decay) * state.mass + decay * both
    return MomentState(total, mass, state.held)


def averages(state: MomentState) -> Moments:
    """The bias-corrected averages; zero where nothing was seen."""
    joint = state.total / jnp.where(state.mass > 0, state.mass, 1.0)
    return Moments.from_joint(joint)


def samples_per_mass(*, num_units: int, decay: float) -> float:
    r"""How many samples one unit of mass stands for, so that \(M_\mathrm{eff} = B \sum_{t=1}^{T} (1-\gamma)^t\).

    For \(B\) independent units per step, \(M_\mathrm{eff}\) is \(B(1-\gamma)/\gamma\) times the mass
    \(1 - (1-\gamma)^T\) that the averages carry already.
    """
    return num_units * (1.0 - decay) / decay


def spread(values: Float[Array, "..."], members: Sequence[int], size: int, *, axes: Sequence[int]) -> Array:
    """Put the entries of some members among those of all, along each of the axes; the others are zero."""
    places = np.full(size, len(members))
    places[list(members)] = np.arange(len(members))
    for axis in axes:
        nothing = jnp.zeros_like(values, shape=np.where(np.arange(values.ndim) == axis % values.ndim, 1, values.shape))
        values = jnp.take(jnp.concatenate([values, nothing], axis), places, axis)
    return values


def finite_rows(joint: Joint) -> Bool[Array, "*leaf joint"]:
    """Which rows are usable: those whose own squared norm and product with the base gradient are finite."""
    own = jnp.isfinite(jnp.diagonal(joint, axis1=-2, axis2=-1))
    return own & (jnp.isfinite(joint[..., 0]) | ~own[..., :1])
