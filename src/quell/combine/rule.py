# SPDX-License-Identifier: Apache-2.0
"""The rule: lagged weights from exponential averages of the second moments of base gradient and variates.

Everything here is arrays: the joint matrix of inner products has the base gradient as row and column 0 and
the variates after it. Where weights are learned by leaf, there is one matrix for each leaf of the parameters.
"""

import math
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from quell.combine.solve import Joint, Moments, NormalWishart, isotropic, solve
from quell.core.checks import check_count, check_name


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


def finite_rows(joint: Joint) -> Bool[Array, "*leaf joint"]:
    """Which rows are usable: those whose own squared norm and product with the base gradient are finite."""
    own = jnp.isfinite(jnp.diagonal(joint, axis1=-2, axis2=-1))
    return own & (jnp.isfinite(joint[..., 0]) | ~own[..., :1])


METRICS = ("euclidean", "natural")


class Rule(eqx.Module):
    r"""How the weights of the variates are learned.

    `weights` sees only the moments of earlier steps, so that the combined gradient stays unbiased;
    `observe` takes in those of the current one.

    Args:
        decay: \(\gamma\) of the exponential averages, between 0 and 1.
        v0: prior strength, which shrinks the weights to zero, in units of the gradient of the ELBO per datum; 0 trusts
            the averages fully.
        prior: a general prior in place of \(v_0 I\).
        by_leaf: learn weights of their own for each leaf of the family's parameters, such as the location and the
            scale of a Gaussian, in place of one set for all of them. Each leaf then has the least noise that the
            variates can give it.
        metric: what the noise is measured in. `"euclidean"` is the squared norm of the gradient of the ELBO per datum.
            `"natural"` is \(g^\top F^{-1} g\) of the gradient of the ELBO in nats, with the Fisher matrix \(F\) of the
            family: the norm that counts where steps follow the natural gradient. `v0` is then in its units.
        every: take inner products at each step of this number only, and go on with the weights between. Between, the
            squared norms that a step reports are those of the latest inner products at the weights in use. `decay` is
            that of one taking.

    Example:
        >>> import quell
        >>> quell.Rule(by_leaf=True, every=5)
        Rule(by_leaf=True, every=5)

    References: Geffner & Domke (2018), section 4.
    """

    decay: float = 0.02
    v0: float = 1e-3
    prior: NormalWishart | None = None
    by_leaf: bool = False
    metric: str = "euclidean"
    every: int = 1

    def __check_init__(self) -> None:
        """Refuse a decay, a strength, a metric or a number of steps outside their range."""
        if not 0 < self.decay < 1:
            raise ValueError(f"`decay` must be between 0 and 1, got {self.decay}.")
        if not 0 <= self.v0 < math.inf:
            raise ValueError(f"`v0` must be at least 0 and finite, got {self.v0}.")
        if self.by_leaf and self.prior is not None:
            raise ValueError(
                "`prior` must be `None` with `by_leaf=True`, got one for all parameters together; try `v0`."
            )
        check_name("`metric`", self.metric, METRICS)
        check_count("every", self.every)

    def init(self, num_variates: int, dtype: DTypeLike, *, num_leaves: int = 1) -> MomentState:
        """Nothing seen yet; the first weights are zero."""
        state = init_moments(num_variates, dtype, num_leaves=num_leaves if self.by_leaf else None)
        if self.every == 1:
            return state
        return MomentState(state.total, state.mass, Held(jnp.zeros((), jnp.int32), state.total))

    def weights(
        self, state: MomentState, *, num_units: int, num_params: int | Sequence[int]
    ) -> Float[Array, "*leaf variate"]:
        """Weights from the moments of earlier steps.

        Args:
            state: it must not have seen the draw that is to be weighted.
            num_units: independent units per step.
            num_params: length of the gradient; where weights are learned by leaf, that of each leaf.
        """
        # The average times the effective number of samples is the total times the samples that a unit of mass stands
        # for; so each variate counts by its own mass, also one that was dropped at most steps.
        num_samples = samples_per_mass(num_units=num_units, decay=self.decay)
        if isinstance(num_params, int):
            return self._solve(Moments.from_joint(state.total), num_params, num_samples)
        leaves = zip((Moments.from_joint(one) for one in state.total), num_params, strict=True)
        return jnp.stack([self._solve(leaf, num, num_samples) for leaf, num in leaves])

    def _solve(self, total: Moments, num_params: int, num_samples: float) -> Float[Array, "variate"]:
        num_variates = total.cross.shape[0]
        if not num_variates:
            return total.cross
        default = isotropic(self.v0, num_params=num_params, num_variates=num_variates, dtype=total.cross.dtype)
        return solve(self.prior or default, total, num_samples)

    def observe(self, state: MomentState, joint: Float[Array, "*leaf joint joint"]) -> MomentState:
        """Take in the inner products of the current step."""
        seen = observe(state, joint, decay=self.decay)
        if state.held is None:
            return seen
        is_due = self.is_due(state)
        total, mass = jnp.where(is_due, seen.total, state.total), jnp.where(is_due, seen.mass, state.mass)
        return MomentState(total, mass, Held(state.held.step + 1, joint))

    def is_due(self, state: MomentState) -> Bool[Array, ""]:
        """Whether the current step is one that takes inner products."""
        return jnp.asarray(True) if state.held is None else state.held.step % self.every == 0
