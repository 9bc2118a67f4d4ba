# SPDX-License-Identifier: Apache-2.0
"""Newton's method on common random numbers, which knows how far it is from the optimum."""

import enum
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from quell.core.estimate import Estimate
from quell.core.trees import all_equal, all_finite, select
from quell.fit.algorithm import AlgorithmState
from quell.fit.common_draws import CommonDraws, ExactElbo, LocalElbo
from quell.fit.common_noise import Draws
from quell.fit.leaps import LEAP_TRIALS, Leaps
from quell.fit.line_search import MOST_TRIALS, ROUNDING, line_search
from quell.fit.overfitting import fits_its_draws, is_dear
from quell.fit.starts import APART, MOST_LOST_STARTS, Starts, climbs_after, elsewhere, halfway, num_tried, other_scale
from quell.fit.trust_region import MOST_PRODUCTS, MOST_PRODUCTS_ON_DRAWS, TrustStep, inner, trust_step
from quell.gradient import Gradient, GradientInfo

GOOD_RATIO, BEST_DEVIATION = 0.7, 0.1
"""Of the gain of a step to the predicted one: above the first the region grows, and by more where the ratio is nearer
to one than the second."""

GROWTH, MOST_GROWTH = 2.0, 4.0
"""Of the radius: they make the number of steps to a far optimum grow with the logarithm of the distance."""

LEAST_RADIUS = 1e-6
"""Where no longer step gains anything, the round is over."""

ROUND_SHARE = 0.1
"""A round is over where its draws promise less than this share of the tolerance, or of their own noise."""

NOISE_SHARE = 0.125
"""The next round has so many draws that its noise is about this share of the tolerance."""

MOST_FACTOR = 16
"""Of the number of draws from one round to the next."""

LARGEST_RESIDUAL = 0.1
"""Of conjugate gradients, as a share of the gradient; less near the optimum, so that steps converge superlinearly."""

STALLED = 0.5
"""Of a gap that rounding may explain: where the steps since it was judged have left more of it, no others will do."""

SMALL_RESIDUAL = 1e-3
"""Where a gap or a noise is measured: directions of little curvature, which conjugate gradients see last, count too. A
smaller one is out of reach in single precision."""

FEW = 4.0
"""The noise is measured by as many numbers as there are parameters, and may be this larger over their number."""

CURVATURE_BLOCKS = 8
"""Most that a product with the Hessian sees, for each parameter of a coordinate: two in mean field, and half the
dimension in full rank, whose coordinates are coupled. The inverse of a noisy Hessian is too large, and with it a noise
and a gap; with fewer blocks they stay above a tolerance where those by all draws fall below it."""

FIRST_BLOCKS = 2
"""Of the first round: the fewest that show their noise."""


class Phase(enum.IntEnum):
    """What the next step does."""

    EVALUATE = 0
    """Evaluate the ELBO of the parameters on new draws."""

    JUDGE = 1
    """Compare what is left to gain with the tolerance; then, on draws or where rounding hides it, as the next."""

    MOVE = 2
    """Take a Newton step on these draws."""

    MEASURE = 3
    """Measure the noise of these draws, at the end of their round."""

    COMPARE = 4
    """Evaluate the ELBO halfway between two starts, which have ended their first round equally high."""

    VALIDATE = 5
    """Evaluate the ELBO on other draws, which know nothing of the parameters."""


class NewtonState(NamedTuple):
    """State of `Newton` between steps.

    Args:
        phase: what the next step does.
        draws: of this round.
        here: the ELBO on them around the parameters.
        radius: of the trust region.
        gained: nats of the last step.
        leaps: that may be tried.
        noise: nats by which the optimum on the draws of this round falls short of the true one, on average, as
            measured at the end of the round before; infinite where it is not known.
        gap: nats between the parameters and the optimum; infinite where it was not measured at them, or one step before
            where that is the last of an exact fit.
        gap_error: the standard error of `gap`, at most.
        judged: the gap when it was last known and compared with the tolerance; infinite before.
        has_converged: whether the gap is below the tolerance.
        has_given_up: whether it would take too many draws or starts, or rounding hides what is left to gain.
        starts: that were tried.
        num_gradients: of the log density that were taken, by the cost of the objective.
    """

    phase: Int[Array, ""]
    draws: Draws
    here: LocalElbo
    radius: Float[Array, ""]
    gained: Float[Array, ""]
    leaps: Leaps
    noise: Float[Array, ""]
    gap: Float[Array, ""]
    gap_error: Float[Array, ""]
    judged: Float[Array, ""]
    has_converged: Bool[Array, ""]
    has_given_up: Bool[Array, ""]
    starts: Starts
    num_gradients: Float[Array, ""]


class Outcome(NamedTuple):
    """What a fit knows of itself.

    Args:
        params: the best.
        num_gradients: of the log density that were taken.
        gap: nats to the optimum; `None` where the fit has not measured them.
        starts_differ: whether several starts were tried, and ended in different optima; `None` where the first alone
            was, since another would have taken too long.
        lost_draws: largest share of the draws of a round at which the log density or its gradient was not finite.
    """

    params: PyTree
    num_gradients: int
    gap: Estimate | None = None
    starts_differ: bool | None = False
    lost_draws: float = 0.0


class Newton(eqx.Module):
    r"""Trust-region Newton steps for the ELBO on common random numbers, in rounds of more and more draws.

    Within a round the draws are fixed, and the ELBO on them is a smooth function: a step is accepted where the ELBO
    rises as its quadratic model predicts, and the trust region grows or shrinks. The round ends where the model
    promises less than a tenth of the tolerance, or of the noise of its draws. That noise is

    \[ \nu = \tfrac12 \delta^\top (-H)^{-1} \delta \]

    with \(\delta\) half the difference of the gradients \(g\) of two halves of the draws, which has the distribution
    of the error of their mean; it falls as the number of draws grows, and tells how many the next round needs. These
    are fresh and know nothing of the parameters, so that on them

    \[ \tfrac12 g^\top (-H)^{-1} g - \nu \]

    is an unbiased estimate of the nats that are left to gain, to second order. The standard error is at most
    \(2(\nu(\nu + \text{gap}))^{1/2}\), as if all noise were in one direction. Where gap and error together are below
    the tolerance the fit has converged, and the parameters stay those that were measured, but for one last step where
    there are no draws. Otherwise the round is
    optimised. Where a round of the most draws that an evaluation may take was not enough, the fit ends without having
    converged, and so it does where rounding hides what is left to gain. A round may fit its draws rather than the
    posterior, as of a network, whose draws a full-rank Gaussian can fit one by one. So after a step of many products
    the ELBO is evaluated on other draws: where they say so many nats less that the most draws would not be enough, and
    the step has gained next to nothing of these, the fit ends too.

    Where the expectations are exact and the covariance has no constraints, the gradient tells the expected Hessian, and
    a start begins with leaps: natural-gradient steps of rate one, each of one gradient. After one that fails come two
    Newton steps, and none comes after a Newton step that reaches the top of its model.

    The first round is taken from three starts, on the same draws; from more where they end in different optima or none.
    Of a sampled fit every other start is near the mode, where some points have climbed.
    The best goes on. It is a local optimum nevertheless: modes that no start leads to are not seen.

    In a fit it takes the place of a `quell.Algorithm`.

    Args:
        gradient: the problem; what its diagnostics are measured with.
        objective: the ELBO on common random numbers.
        tolerance: in nats.
        most_starts: that are tried; with none there is no first round, and the parameters given are judged.
        gives_up: whether it ends where it fits its draws, so that sampled gradients can take over.

    Bias: of a gap that is measured on some of the draws of its round, that of the inverse of a noisy Hessian, which is
        too large by about the number of parameters over that of draws.
    Cost: a step takes a gradient on all draws of the round and all data, and a few products with the Hessian, on
        `CURVATURE_BLOCKS` blocks of draws for each parameter of a coordinate at most.

    References: Giordano et al. (2024), "Black box variational inference with a deterministic objective", for common
    random numbers; Byrd, Chin, Neveitt & Nocedal (2011) for products on fewer draws; Steihaug (1983) for the step;
    Khan & Rue (2023) for the leaps.
    """

    gradient: Gradient
    objective: CommonDraws | ExactElbo
    tolerance: float | Float[Array, ""]
    most_starts: int = eqx.field(static=True, default=1)
    gives_up: bool = eqx.field(static=True, default=True)

    def init(self, params: PyTree | None = None) -> AlgorithmState:
        """The state before the first step."""
        family = self.gradient.problem.family
        start = family.init() if params is None else params
        dtype, nothing = jax.tree.leaves(start)[0].dtype, family.geometry.origin(start)
        zero = jnp.zeros((), dtype)
        nowhere = LocalElbo(zero, nothing, nothing, zero, zero)
        state = NewtonState(
            phase=jnp.asarray(Phase.EVALUATE, jnp.int32),
            draws=Draws(jnp.zeros((), jnp.uint32), *jnp.zeros((2,), jnp.int32)),
            here=nowhere,
            radius=_first_radius(nowhere.grad),
            gained=zero,
            leaps=Leaps.of_start(may_leap=self._may_leap),
            noise=jnp.asarray(jnp.inf, dtype),
            gap=jnp.asarray(jnp.inf, dtype),
            gap_error=jnp.asarray(jnp.inf, dtype),
            judged=jnp.asarray(jnp.inf, dtype),
            has_converged=jnp.asarray(False),
            has_given_up=jnp.asarray(False),
            starts=Starts.of(start, nowhere, self.most_starts),
            num_gradients=jnp.zeros((), jnp.float32),
        )
        return AlgorithmState(start, state, self.gradient.init(start))

    def step(
        self, key: Key[Array, ""], state: AlgorithmState, *, next_key: Key[Array, ""] | None = None
    ) -> tuple[AlgorithmState, GradientInfo]:
        """One phase of a round.

        All phases are one program: conjugate gradients, which have nothing to do where a round begins, and one
        evaluation, which is not needed where the noise is measured.

        Args:
            key: for the draws of a round that begins.
            state: from `init` or the step before.
            next_key: not needed.
        """
        now: NewtonState = state.optimizer
        begins, measures, judges, compares, validates = (
            now.phase == phase for phase in (Phase.EVALUATE, Phase.MEASURE, Phase.JUDGE, Phase.COMPARE, Phase.VALIDATE)
        )
        evaluates = begins | compares | validates
        first = begins & now.starts.are_open
        draws = self._draws(key, now)
        seen = draws._replace(seed=draws.seed + validates.astype(jnp.uint32))
        curved = draws._replace(blocks=jnp.minimum(draws.blocks, self._curvature_blocks))
        ways = now.here.noise, now.here.grad
        way = jax.tree.map(lambda noise, grad: jnp.where(measures, noise, jnp.where(evaluates, 0.0, grad)), *ways)
        only_judges = judges & self.objective.is_exact  # and takes no step, so that no boundary hides the gap
        leaps = (now.phase == Phase.MOVE) & now.leaps.are_due if self._may_leap else jnp.asarray(False)
        radius = jnp.where(measures | only_judges, jnp.inf, now.radius)
        was_judged = jnp.isfinite(now.judged) & self.objective.is_exact  # one step is to leave nothing of that gap
        most = jnp.where(measures | judges | was_judged, SMALL_RESIDUAL, LARGEST_RESIDUAL)
        residual = jnp.clip(jnp.sqrt(jnp.sqrt(inner(way, way))), SMALL_RESIDUAL, most)
        solved = jax.lax.cond(
            evaluates | leaps,
            lambda: TrustStep.of_nothing(way),
            lambda: trust_step(
                way, self.objective.product(state.params, curved), radius, residual, self._most_products
            ),
        )

        fewer = jnp.where(begins, now.draws.blocks / draws.blocks, 1.0)  # than now were measured
        is_known = ~begins | (now.draws.pieces == draws.pieces)
        gain = jnp.where(solved.is_solved, solved.gain, jnp.inf)  # what the top of the model is above the parameters
        noise = jnp.where(is_known, jnp.where(measures, gain, fewer * now.noise), jnp.inf)
        noise = jnp.zeros_like(noise) if self.objective.is_exact else noise
        gap = jnp.where(judges, jnp.where(jnp.isfinite(noise), gain - noise, jnp.inf), now.gap)
        # Few parameters have few numbers that show the noise: those of these draws count too.
        shown = 0.5 * inner(now.here.noise, now.here.noise) / jnp.maximum(solved.curvature, 1.0)
        large = jnp.maximum(noise, shown) * (1 + FEW / sum(leaf.size for leaf in jax.tree.leaves(way)))
        error = jnp.where(judges, 2 * jnp.sqrt(large * (large + jnp.maximum(gap, 0.0))), now.gap_error)
        has_converged = judges & (jnp.maximum(gap, 0.0) + error < self.tolerance)
        is_too_noisy = judges & ~has_converged & (draws.blocks > self.objective.most_blocks)

        def moved(share: Float[Array, ""]) -> PyTree:
            geometry = self.gradient.problem.family.geometry

            def after_step() -> PyTree:
                return geometry.chart(state.params, jax.tree.map(lambda leaf: share * leaf, solved.step))

            if not self._may_leap:
                return after_step()
            return jax.lax.cond(leaps, lambda: geometry.leap(state.params, now.here.grad, share), after_step)

        # A step is known that leaves nothing to gain; where only a gap is measured it is not taken.
        is_last = has_converged & (self.objective.is_exact and self.most_starts > 0)
        # No ratio could hold back a step that is taken on trust: the judged one is, if the last one halved the gap.
        is_trusted = (gap < ROUNDING * now.here.rounding) & ~(gap > STALLED * now.judged)
        is_trusted &= only_judges & ~has_converged
        stays = (evaluates | measures | has_converged | is_too_noisy | only_judges) & ~(is_last | is_trusted)

        def along(share: Float[Array, ""]) -> tuple[PyTree, LocalElbo]:
            there = moved(share)
            return there, self.objective.around(there, seen)

        most_trials = jnp.where(stays, 0, jnp.where(leaps, LEAP_TRIALS, MOST_TRIALS))
        most_trials = jnp.where(evaluates | is_last | is_trusted, 1, most_trials)
        found = line_search(along, state.params, now.here, solved, stays, most_trials)
        moves, is_whole = found.is_better & ~stays, found.share >= 1
        gained = jnp.where(leaps, found.there.value - now.here.value, solved.gain)
        params = select(moves, found.params, state.params)
        is_lost = (begins | compares) & ~all_finite(found.there._replace(noise=()))
        here = select(moves | ((begins | compares) & ~is_lost), found.there, now.here)
        here = here._replace(lost=jnp.maximum(here.lost, jnp.where(now.starts.are_open, 0.0, now.here.lost)))

        growth = jnp.where(jnp.abs(found.ratio - 1) < BEST_DEVIATION, MOST_GROWTH, GROWTH)
        grown = jnp.where((found.ratio > GOOD_RATIO) & ~solved.is_inside, growth * now.radius, now.radius)
        length = found.share * solved.length
        keeps = stays | leaps | (is_trusted & ~moves)  # whose length is that of no region
        radius = jnp.where(keeps, now.radius, jnp.where(moves & is_whole, jnp.maximum(grown, length), length))
        least = ROUND_SHARE * jnp.maximum(self.tolerance, jnp.where(jnp.isfinite(noise), noise, shown))
        least = jnp.asarray(self.tolerance, noise.dtype) if self.objective.is_exact else least
        # Where the model promises nothing, a trial that fails has failed by rounding; a leap has no model.
        failed_by_rounding = all_finite(found.there._replace(noise=()))
        # On draws a model that conjugate gradients could not solve promises little more than they have found.
        is_model_top = solved.is_solved if self.objective.is_exact else solved.is_inside
        is_at_top = ~(stays | leaps) & ((moves & is_whole) | failed_by_rounding) & is_model_top & (gained < least)
        is_stuck = moves & all_equal(params, state.params)  # rounding leaves nothing of the step
        is_small, hidden = radius < LEAST_RADIUS, here.rounding
        is_hidden = self.objective.is_exact & moves & is_whole & (gained < hidden)  # by rounding
        is_near = is_stuck & is_model_top & (gained < self.tolerance)
        is_at_top |= (is_hidden & is_model_top) | is_near | (is_trusted & moves & is_whole)
        is_spent = self.objective.is_exact & ~(begins | is_at_top) & (is_small | (is_hidden & (radius >= 1)))
        is_over, is_lonely = is_at_top | is_spent | is_small, is_spent & ~now.starts.are_open  # no start is left
        # Newton steps at an optimum leave next to nothing of a gap, but for what the gradient loses.
        is_stalled = only_judges & ~has_converged & (gap < hidden) & (gap > STALLED * now.judged)
        too_much = now.here.value - found.there.value  # that these draws promise, where others are evaluated
        fewest = draws.blocks / self.objective.most_blocks  # of what is too much is left on the most draws
        is_hopeless = validates & fits_its_draws(too_much, now.gained, fewest, self.tolerance)
        is_doubtful = self.gives_up & moves & ~leaps & is_dear(solved.products) & ~jnp.isfinite(noise)
        onward = jnp.where(is_doubtful, Phase.VALIDATE, Phase.MOVE)
        phase = jnp.where(begins & ~first, Phase.JUDGE, jnp.where(is_over, self._after_round, onward))
        after = NewtonState(
            phase=jnp.where(measures | is_lost, Phase.EVALUATE, phase).astype(jnp.int32),
            draws=draws,
            here=here,
            radius=jnp.where(is_over, jnp.maximum(radius, 1.0), radius),
            gained=jnp.where(moves, gained, now.gained),
            leaps=select(
                leaps,
                now.leaps.after_leap(moves, is_whole, gained),
                now.leaps.after_newton(moves & is_whole & solved.is_solved),
            ),
            noise=noise,
            gap=jnp.where(moves & ~has_converged, jnp.inf, gap),
            gap_error=error,
            judged=jnp.where(judges & jnp.isfinite(gap), gap, now.judged),
            has_converged=has_converged,
            has_given_up=(is_lost & ~first)
            | (is_stuck & ~is_near)
            | (is_too_noisy | is_hopeless | is_lonely | is_stalled),
            starts=now.starts._replace(lost=now.starts.lost + (is_lost & first)),
            num_gradients=now.num_gradients
            + self.objective.cost(draws, found.trials)
            + self.objective.cost(curved, products=solved.products),
        )
        least = jnp.where(self.objective.is_exact, jnp.maximum(least, hidden), least)
        apart = jnp.where(is_at_top | compares, APART + 2 * least, jnp.inf)
        params, after = self._between_starts(key, params, now, after, is_lost, is_over | is_stuck, apart)
        sq_norm = inner(here.grad, here.grad) / float(self.gradient.problem.model.num_data) ** 2
        elbo = jnp.where(is_lost & (now.starts.ended == 0), jnp.nan, here.value)
        info = GradientInfo(elbo, sq_norm, sq_norm, jnp.zeros(0, sq_norm.dtype), jnp.zeros(0, bool))
        return AlgorithmState(params, after, state.gradient), info

    def _between_starts(
        self,
        key: Key[Array, ""],
        params: PyTree,
        before: NewtonState,
        after: NewtonState,
        is_lost: Bool[Array, ""],
        is_over: Bool[Array, ""],
        apart: Float[Array, ""],
    ) -> tuple[PyTree, NewtonState]:
        """Where a start of the first round ends, begin another or go on with the best.

        Args:
            key: for another start.
            params: after the step.
            before: the step.
            after: it.
            is_lost: whether the ELBO is not finite at the parameters.
            is_over: whether the round has come to its end from this start.
            apart: nats that make two optima different; infinite for a start that has found none.
        """
        starts, compares, problem = after.starts, before.phase == Phase.COMPARE, self.gradient.problem
        here = after.here._replace(value=jnp.where(is_lost, jnp.nan, after.here.value))
        is_rival = starts.are_open & (starts.ended > 0)
        ends = is_over | compares | starts.is_impatient(after.num_gradients) | (is_rival & is_lost)
        ends = starts.are_open & ends
        higher = here.value - starts.here.value
        meets = ends & ~compares & (starts.ended > 0) & jnp.isfinite(apart) & (jnp.abs(higher) <= apart)
        differs = jnp.isfinite(apart) & ~(jnp.where(compares, -0.5 * higher, jnp.abs(higher)) <= apart)
        between = halfway(starts.params, params)
        starts = select(meets & (higher > 0), starts._replace(params=params, here=here), starts)
        alone = jnp.minimum(starts.agreeing, 1)  # either of two optima as high as each other
        starts = starts._replace(agreeing=jnp.where(compares & differs, alone, starts.agreeing))
        ends = ends & ~meets
        has_found = jnp.isfinite(apart)
        share = self.objective.search_share
        added = starts.add(params, here, after.num_gradients, share, self.most_starts, has_found, differs)
        starts = select(ends, added, starts)
        restarts, closes = ends & starts.are_open, ends & ~starts.are_open

        is_complete = is_over | (starts.here.value == before.starts.here.value)
        phase = jnp.where(closes, jnp.where(is_complete, self._after_round, Phase.MOVE), after.phase)
        phase = jnp.where(meets, Phase.COMPARE, jnp.where(restarts, Phase.EVALUATE, phase)).astype(jnp.int32)
        moves_on = restarts | (is_lost & before.starts.are_open & ~is_rival)
        begun = select(restarts, other_scale(problem.family, self.objective, params.loc.dtype), starts.params)
        climbs = climbs_after(starts.ended)
        new = jax.lax.cond(moves_on, lambda: elsewhere(key, self.objective, begun, climbs), lambda: params)
        tried = jnp.where(moves_on, num_tried(self.objective, climbs), 0)
        params = select(meets, between, select(closes, starts.params, new))
        return params, after._replace(
            phase=phase,
            here=select(closes, starts.here._replace(lost=jnp.zeros_like(here.lost)), after.here),
            radius=jnp.where(restarts, _first_radius(here.grad), after.radius),
            leaps=select(restarts, Leaps.of_start(may_leap=self._may_leap), after.leaps),
            has_given_up=~is_rival & (after.has_given_up | (starts.lost > MOST_LOST_STARTS)),
            starts=starts._replace(began=starts.began + tried),
            num_gradients=after.num_gradients + tried,
        )

    @property
    def _after_round(self) -> Phase:
        """What follows a round; without draws there is no noise to measure."""
        return Phase.JUDGE if self.objective.is_exact else Phase.MEASURE

    @property
    def _most_products(self) -> int:
        """Of a step."""
        return MOST_PRODUCTS if self.objective.is_exact else MOST_PRODUCTS_ON_DRAWS

    @property
    def _curvature_blocks(self) -> int:
        """That a product sees."""
        family = self.gradient.problem.family
        return CURVATURE_BLOCKS * -(-family.num_params // family.dim)

    @property
    def _may_leap(self) -> bool:
        """Not on draws, whose noise would be that of the curvature."""
        return self.objective.is_exact and self.gradient.problem.family.geometry.knows_curvature

    def has_ended(self, state: AlgorithmState) -> Bool[Array, "*fit"]:
        """Whether the fit has converged, or has given up."""
        now: NewtonState = state.optimizer
        return now.has_converged | now.has_given_up

    def outcome(self, state: AlgorithmState) -> Outcome:
        """What the fit knows of itself; while other starts are tried the parameters are those of the best."""
        now: NewtonState = state.optimizer
        starts = now.starts
        ended, wanted = int(starts.ended), int(starts.wanted)
        is_only_start = (ended, wanted) == (1, 0)
        return Outcome(
            params=starts.params if 0 < ended < wanted else state.params,
            num_gradients=int(now.num_gradients),
            gap=Estimate(float(now.gap), float(now.gap_error)) if np.isfinite(now.gap) else None,
            starts_differ=None if is_only_start else bool(starts.differ),
            lost_draws=float(now.here.lost),
        )

    def must_stay_finite(self, state: AlgorithmState) -> PyTree:
        """The parameters: they move only where the ELBO is finite, and what is not known of it may be infinite."""
        return state.params

    def _draws(self, key: Key[Array, ""], now: NewtonState) -> Draws:
        """Those of the round, or fresh ones where it begins; all starts of the first see the same."""
        begins, is_first, objective = now.phase == Phase.EVALUATE, now.starts.are_open, self.objective
        stays = ~begins | (is_first & (now.starts.ended > 0))
        seed = jnp.where(stays, now.draws.seed, jax.random.bits(key, dtype=jnp.uint32))
        blocks = jnp.where(is_first, FIRST_BLOCKS, self._next_blocks(now.draws, now.noise))
        pieces = jnp.where(is_first, objective.first_pieces, objective.pieces)
        return Draws(seed, jnp.where(stays, now.draws.blocks, blocks), jnp.where(stays, now.draws.pieces, pieces))

    def _next_blocks(self, draws: Draws, noise: Float[Array, ""]) -> Int[Array, ""]:
        """So many that the noise is a small part of the tolerance, up to the most that an evaluation may take.

        As many as before where it is, twice as many where it is not known, few after a round of parts of blocks. After
        a round of the most comes a last one, which is measured: it has more.
        """
        factor = jnp.nan_to_num(noise / (NOISE_SHARE * self.tolerance), nan=2.0, posinf=2.0)
        most, now = self.objective.most_blocks, draws.blocks
        wanted = jnp.ceil(now * jnp.minimum(factor, MOST_FACTOR)).astype(jnp.int32) // 2 * 2
        more = jnp.where(factor <= 1, now, jnp.maximum(jnp.minimum(wanted, most), now + 2))
        return jnp.where(draws.pieces < self.objective.pieces, FIRST_BLOCKS, more)


def _first_radius(grad: PyTree) -> Float[Array, ""]:
    """The root of the number of parameters: a standard deviation in each direction."""
    leaves = jax.tree.leaves(grad)
    return jnp.sqrt(jnp.asarray(sum(leaf.size for leaf in leaves), leaves[0].dtype))
