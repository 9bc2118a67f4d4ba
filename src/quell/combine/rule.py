# SPDX-License-Identifier: Apache-2.0
"""The rule: lagged weights from exponentially averaged moments."""

import math

import equinox as eqx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from quell.combine.moments import Moments, MomentState, init_moments, observe, samples_per_mass
from quell.combine.prior import NormalWishart, isotropic
from quell.combine.solve import solve


class Rule(eqx.Module):
    r"""How the weights of the variates are learned.

    `weights` sees only the moments of earlier steps, so that the combined gradient stays unbiased;
    `observe` takes in those of the current one.

    Args:
        decay: \(\gamma\) of the exponential averages, between 0 and 1.
        v0: strength of the belief that variates are useless, in units of the gradient of the ELBO a
            datum; 0 trusts the averages fully.
        prior: a general prior in place of \(v_0 I\).

    References: Geffner & Domke (2018), section 4.
    """

    decay: float = 0.02
    v0: float = 1e-3
    prior: NormalWishart | None = None

    def __check_init__(self) -> None:
        """Refuse a decay or a strength outside their range."""
        if not 0 < self.decay < 1:
            raise ValueError(
                f"`decay` was given as {self.decay}. A number between 0 and 1 was needed. "
                "Write for example `Rule(decay=0.02)`."
            )
        if not 0 <= self.v0 < math.inf:
            raise ValueError(
                f"`v0` was given as {self.v0}. A number of at least 0 was needed. Write for example `Rule(v0=1e-3)`."
            )

    def init(self, num_variates: int, dtype: DTypeLike) -> MomentState:
        """Nothing seen yet; the first weights are zero."""
        return init_moments(num_variates, dtype)

    def weights(self, state: MomentState, *, num_units: int, num_params: int) -> Float[Array, "variate"]:
        """Weights from the moments of earlier steps.

        Args:
            state: it must not have seen the draw that is to be weighted.
            num_units: independent units a step.
            num_params: length of the gradient.
        """
        # The average times the effective number of samples is the total times the samples that a unit of mass stands
        # for; so each variate counts by its own mass, also one that was dropped at most steps.
        total = Moments.from_joint(state.total)
        num_variates = total.cross.shape[0]
        if num_variates == 0:
            return total.cross
        dtype = total.cross.dtype
        prior = self.prior or isotropic(self.v0, num_params=num_params, num_variates=num_variates, dtype=dtype)
        return solve(prior, total, samples_per_mass(num_units=num_units, decay=self.decay))

    def observe(self, state: MomentState, joint: Float[Array, "joint joint"]) -> MomentState:
        """Take in the inner products of the current step."""
        return observe(state, joint, decay=self.decay)
