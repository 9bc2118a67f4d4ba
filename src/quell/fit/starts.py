# SPDX-License-Identifier: Apache-2.0
"""Several starts in the first round: the best goes on, and whether they agree is told."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from quell.core.trees import select
from quell.families import AbstractFamily
from quell.fit.common_draws import CommonDraws, ExactElbo, LocalElbo

START_BOX = (-2.0, 2.0)
"""The location of another start is the point of highest density among some that are drawn from a box."""

MOST_LOST_STARTS = 100
"""Where the ELBO is not finite at a start, there is another one, so many times."""

WIDER = 3.0
"""Than the first the others start: under a wide Gaussian small optima are smoothed away. On a model of predators and
prey, 7 of 8 such starts find the better of two optima, and 3 of 8 of those as narrow as the first."""

FEWEST_STARTS, MOST_STARTS = 3, 6
"""Where three starts agree no more are tried."""

APART = 0.1
"""Nats between two starts, and twice as many between them and a point halfway, that make them two optima."""

PATIENCE = 2.0
"""Gradients that another start may take, as a multiple of those of the first."""

LARGEST_SEARCH = 2**26
"""Log-likelihoods of single data, or of addends at nodes, in gradients: after more of them no other start is tried."""


class Starts(NamedTuple):
    """The starts of a fit so far.

    Args:
        params: where the best of them ended its first round.
        here: the ELBO there.
        ended: how many of them have.
        missed: how many of these without an optimum.
        wanted: how many are to be tried.
        lost: starts at which the ELBO was not finite.
        first: gradients of the log density that the first took.
        began: gradients before the present one.
        differ: whether some ended in different optima.
    """

    params: PyTree
    here: LocalElbo
    ended: Int[Array, ""]
    missed: Int[Array, ""]
    wanted: Int[Array, ""]
    lost: Int[Array, ""]
    first: Float[Array, ""]
    began: Float[Array, ""]
    differ: Bool[Array, ""]

    @classmethod
    def of(cls, params: PyTree, here: LocalElbo, most: int) -> "Starts":
        """Before the first; at most so many."""
        none, zero = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        wanted = jnp.asarray(min(most, FEWEST_STARTS), jnp.int32)
        return cls(params, here, none, none, wanted, none, zero, zero, jnp.asarray(False))

    @property
    def are_open(self) -> Bool[Array, ""]:
        """Whether the first round goes on."""
        return self.ended < self.wanted

    def is_impatient(self, gradients: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the present start, which is not the first, has taken too many gradients."""
        return self.are_open & (self.ended > 0) & (gradients - self.began > PATIENCE * self.first)

    def add(
        self,
        params: PyTree,
        here: LocalElbo,
        gradients: Float[Array, ""],
        size: int,
        most: int,
        has_found: Bool[Array, ""],
        differs: Bool[Array, ""],
    ) -> "Starts":
        """After the end of another.

        Args:
            params: where it ended.
            here: the ELBO there; not a number for a start without an end.
            gradients: of the log density so far.
            size: log-likelihoods of single data, or of addends at nodes, that each takes.
            most: starts that may be tried.
            has_found: whether it ended in an optimum; those that did not agree with nothing.
            differs: whether it ended in another optimum than the best one before.
        """
        is_first = self.ended == 0
        is_better = is_first | (here.value > self.here.value)
        best = select(is_better, (params, here), (self.params, self.here))
        first = jnp.where(is_first, gradients, self.first)
        differ = self.differ | (~is_first & differs)
        missed = self.missed + ~has_found
        wanted = jnp.where(differ, most, jnp.minimum(most, FEWEST_STARTS + missed))
        return self._replace(
            params=best[0],
            here=best[1],
            ended=self.ended + 1,
            missed=missed,
            wanted=jnp.where(gradients * size > LARGEST_SEARCH, 0, wanted).astype(jnp.int32),
            first=first,
            began=gradients,
            differ=differ,
        )


def elsewhere(key: Key[Array, ""], objective: CommonDraws | ExactElbo, params: PyTree) -> PyTree:
    """The parameters with another location."""
    points = jax.random.uniform(key, (objective.tried_points, *params.loc.shape), params.loc.dtype, *START_BOX)
    heights = objective.log_joints(points)
    return params._replace(loc=points[jnp.argmax(jnp.nan_to_num(heights, nan=-jnp.inf, posinf=-jnp.inf))])


def wider(family: AbstractFamily, dtype: DTypeLike) -> PyTree:
    """Parameters of another start; as the first where a family has no `init_scale`."""
    scale = getattr(family, "init_scale", None)
    return (family if scale is None else dataclasses.replace(family, init_scale=WIDER * scale)).init(dtype=dtype)


def halfway(one: PyTree, other: PyTree) -> PyTree:
    """The first with a location in the middle between both."""
    return one._replace(loc=0.5 * (one.loc + other.loc))
