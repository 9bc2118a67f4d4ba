# SPDX-License-Identifier: Apache-2.0
"""Several starts in the first round: the best goes on, and whether they agree is told."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from quell.core.trees import select
from quell.families import AbstractFamily
from quell.fit.common_draws import CommonDraws, ExactElbo, LocalElbo, log_joints

START_BOX, TRIED_POINTS = (-2.0, 2.0), 64
"""The location of another start is the point of highest density among some that are drawn from a box."""

MOST_LOST_STARTS = 100
"""Where the ELBO is not finite at a start, there is another one, so many times."""

WIDER = 3.0
"""Than the first the others start: under a wide Gaussian small optima are smoothed away. On a model of predators and
prey, 7 of 8 such starts find the better of two optima, and 3 of 8 of those as narrow as the first."""

NARROWER = 0.3
"""Than the first the others start near the mode, where coordinates are many: the spreads of thousands of them add up,
and hide what the data say before a location has seen it. On a horseshoe with 2,000 features all wide starts ended
without a feature, and most narrow ones 60 to 90 nats higher."""

CLIMB, CLIMB_RATE, NEAR = 100, 0.1, 0.05
"""Steps of Adam towards the mode, their rate, and, where coordinates are many, the part of the box around the first
start that half of them leave from, so that no two starts are the same. On a model of predators and prey 12 of 12 starts
that have climbed find the better of two optima, and 7 of 12 of those from the highest of 512, 2,048 or 8,192 points."""

MOST_SLOPE = 1e9
"""Whose square is finite in single precision."""

FEWEST_STARTS, MOST_STARTS = 3, 6
"""Where three starts end in the best optimum no more are tried."""

APART = 0.1
"""Nats between two starts, and twice as many between them and a point halfway, that make them two optima."""

PATIENCE = 2.0
"""Gradients that another start may take, as a multiple of those of the first."""


class Starts(NamedTuple):
    """The starts of a fit so far.

    Args:
        params: where the best of them ended its first round.
        here: the ELBO there.
        ended: how many of them have.
        agreeing: how many of these in the best optimum; none where the best is no optimum.
        wanted: how many are to be tried; none where another would take too long.
        lost: starts at which the ELBO was not finite.
        first: gradients of the log density that the first took.
        began: gradients before the present one.
        differ: whether some ended in different optima.
        found: whether some ended in an optimum.
    """

    params: PyTree
    here: LocalElbo
    ended: Int[Array, ""]
    agreeing: Int[Array, ""]
    wanted: Int[Array, ""]
    lost: Int[Array, ""]
    first: Float[Array, ""]
    began: Float[Array, ""]
    differ: Bool[Array, ""]
    found: Bool[Array, ""]

    @classmethod
    def of(cls, params: PyTree, here: LocalElbo, most: int) -> "Starts":
        """Before the first; at most so many."""
        none, zero = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32)
        wanted, no = jnp.asarray(min(most, FEWEST_STARTS), jnp.int32), jnp.asarray(False)
        return cls(params, here, none, none, wanted, none, zero, zero, no, no)

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
        share: float,
        most: int,
        has_found: Bool[Array, ""],
        differs: Bool[Array, ""],
    ) -> "Starts":
        """After the end of another.

        Args:
            params: where it ended.
            here: the ELBO there; not a number for a start without an end.
            gradients: of the log density so far.
            share: of the longest search, that each is.
            most: starts that may be tried.
            has_found: whether it ended in an optimum; one that did not agrees with nothing.
            differs: whether it ended in another optimum than the best one before.
        """
        is_first = self.ended == 0
        is_better = is_first | (here.value > self.here.value)
        best = select(is_better, (params, here), (self.params, self.here))
        first = jnp.where(is_first, gradients, self.first)
        is_new = is_better & (is_first | differs | ~has_found)
        agreeing = jnp.where(is_new, 0, self.agreeing) + (has_found & (is_new | ~differs))
        ended = self.ended + 1
        # Where the best is no optimum, one above it is above all optima before, and one below may be one of them.
        is_other = jnp.where(self.agreeing > 0, differs, self.found & is_new & has_found)
        wanted = jnp.minimum(most, ended + jnp.maximum(FEWEST_STARTS - agreeing, 0))
        is_dear = (wanted > ended) & ((gradients + first) * share > 1)  # if the next takes as many as the first
        return self._replace(
            params=best[0],
            here=best[1],
            ended=ended,
            agreeing=agreeing,
            wanted=jnp.where(is_dear, 0, wanted).astype(jnp.int32),
            first=first,
            began=gradients,
            differ=self.differ | is_other,
            found=self.found | has_found,
        )


def num_tried(objective: CommonDraws | ExactElbo, climbs: Bool[Array, ""]) -> Int[Array, ""] | int:
    """Gradients of the log density that the location of another start takes, at most."""
    if isinstance(objective, ExactElbo):
        return 0
    climb = CLIMB * objective.draws_at_once
    if objective.has_many_coordinates:
        return climb
    return jnp.where(climbs, climb, TRIED_POINTS) if objective.is_alone else TRIED_POINTS


def climbs_after(ended: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the start after so many is near the mode: every other one, and not the first."""
    return (ended > 0) & (ended % 2 == 0)


def elsewhere(
    key: Key[Array, ""], objective: CommonDraws | ExactElbo, params: PyTree, climbs: Bool[Array, ""]
) -> PyTree:
    """The parameters with another location: the highest of some points, or of some that have climbed.

    Args:
        key: for the points.
        objective: whose log joint is high there.
        params: with the location that the first start began with.
        climbs: whether they climb. Where coordinates are many all do; without draws none does, nor of few coordinates
            beside other fits, which would climb at every step.
    """
    box = functools.partial(jax.random.uniform, key, dtype=params.loc.dtype, minval=START_BOX[0], maxval=START_BOX[1])

    def highest(points: Float[Array, "point latent"]) -> Float[Array, "latent"]:
        heights = objective.log_joints(points)
        return points[jnp.argmax(jnp.nan_to_num(heights, nan=-jnp.inf, posinf=-jnp.inf))]

    def of_box() -> Float[Array, "latent"]:
        return highest(box((TRIED_POINTS, *params.loc.shape)))

    if isinstance(objective, ExactElbo):
        return params._replace(loc=of_box())

    def climbed() -> Float[Array, "latent"]:
        points = box((objective.draws_at_once, *params.loc.shape))
        if objective.has_many_coordinates:  # half from near by
            points = points.at[::2].multiply(NEAR).at[::2].add(params.loc)
        return highest(_climbed(objective, points))

    if objective.has_many_coordinates:
        return params._replace(loc=climbed())
    return params._replace(loc=jax.lax.cond(climbs, climbed, of_box) if objective.is_alone else of_box())


def _climbed(objective: CommonDraws, points: Float[Array, "point latent"]) -> Float[Array, "point latent"]:
    adam = optax.adam(CLIMB_RATE)

    def step(_: Int[Array, ""], now: tuple[Array, Any]) -> tuple[Array, Any]:
        slopes = log_joints(objective.problem.model, now[0])[1]
        slopes = jnp.where(jnp.isfinite(slopes), jnp.clip(slopes, -MOST_SLOPE, MOST_SLOPE), 0.0)
        updates, state = adam.update(-slopes, now[1])
        return jnp.add(now[0], updates), state  # pyright: ignore[reportArgumentType]

    return jax.lax.fori_loop(0, CLIMB, step, (points, adam.init(points)))[0]


def other_scale(family: AbstractFamily, objective: CommonDraws | ExactElbo, dtype: DTypeLike) -> PyTree:
    """Parameters that another start begins with; as the first where a family has no `init_scale`."""
    scale, factor = getattr(family, "init_scale", None), NARROWER if objective.has_many_coordinates else WIDER
    return (family if scale is None else dataclasses.replace(family, init_scale=factor * scale)).init(dtype=dtype)


def halfway(one: PyTree, other: PyTree) -> PyTree:
    """The first with a location in the middle between both."""
    return one._replace(loc=0.5 * (one.loc + other.loc))
