# SPDX-License-Identifier: Apache-2.0
"""What each variate contributes, and what it costs."""

import dataclasses
import math

import jax
import numpy as np
from jaxtyping import Array, Key, PyTree

from quell.core.estimate import Estimate, mean_of, ratio_of
from quell.diagnostics.covariance import BlockCovariances, step_covariances, variance_with
from quell.diagnostics.ensembles import Covariances, best_weights, held_out_variances, least_useful_first
from quell.diagnostics.step_time import step_times
from quell.diagnostics.variance import current_weights
from quell.gradient import Gradient, GradientState

TOLERANCE = 0.02
"""Variates are dispensable if the variance without all of them grows by at most this fraction."""

_DISPENSABLE, _ALL = "without the dispensable ones", "without any"


@dataclasses.dataclass(frozen=True)
class Contribution:
    """The contribution of one variate.

    Attributes:
        name: of the variate.
        weight: current weight; by the leaf's name, if weights are learned by leaf.
        best_weight: for the draws at hand, all variates together.
        alone: fraction of the base gradient's variance that it removes by itself, at its best weight.
        share: fraction of the base gradient's variance that only it removes, which comes back without it.
        growth: factor by which the variance grows without it, the others at their best weights.
        cost: fraction of the time per step that is saved without it; NaN if it was not measured.
    """

    name: str
    weight: float | dict[str, float]
    best_weight: float | dict[str, float]
    alone: Estimate
    share: Estimate
    growth: Estimate
    cost: float


@dataclasses.dataclass(frozen=True)
class Dispensable:
    """Variates that together contribute next to nothing.

    Attributes:
        names: of the variates.
        growth: factor by which the variance grows without all of them.
        share: fraction of the base gradient's variance that comes back without all of them.
        cost: fraction of the time per step that is saved without all of them; NaN if it was not measured.
    """

    names: tuple[str, ...]
    growth: Estimate
    share: Estimate
    cost: float


@dataclasses.dataclass(frozen=True)
class Contributions:
    """What the variates contribute at one point of a fit.

    Attributes:
        variates: one entry each, in the order of the gradient.
        base: variance of the base gradient of one step, for the loss `-ELBO / num_data`.
        combined: with the variates at their current weights.
        best: with the variates at the best weights, evaluated on held-out draws.
        dispensable: variates that contribute next to nothing.
        step_seconds: time per gradient with all variates; NaN if it was not measured.
        cost: fraction of that time that all variates take together; NaN if it was not measured.
    """

    variates: tuple[Contribution, ...]
    base: Estimate
    combined: Estimate
    best: Estimate
    dispensable: Dispensable
    step_seconds: float
    cost: float

    def __repr__(self) -> str:
        """A line per variate."""
        width = max((len(variate.name) for variate in self.variates), default=0)
        lines = [
            f"  {v.name:<{width}}  weight {_written(v.weight)}, alone removes {v.alone.value:.1%}, without it the "
            f"variance grows {v.growth.value:.3g} times" + ("" if math.isnan(v.cost) else f", cost {v.cost:.0%}")
            for v in self.variates
        ]
        variances = f"variance {self.base.value:.3g} -> {self.combined.value:.3g}, at best {self.best.value:.3g}"
        return "\n".join([f"Contributions({variances})", *lines])


def contributions(
    key: Key[Array, ""],
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    *,
    num: int = 1000,
    budget: float = math.inf,
) -> Contributions:
    r"""Weight, fraction of the variance removed, leave-one-out loss and cost of each variate.

    Variances come from fresh draws; best weights are fitted on nine tenths of them and evaluated on the rest, ten times
    over. Costs are measured: compiled steps with all variates against steps without each one, in alternation.

    Args:
        key: for the draws.
        gradient: problem, variates and sampler.
        params: where to measure: `result.params`, or those of an earlier step.
        state: of the gradient at these parameters: `result.state`.
        num: steps to draw for the variances, at least 20.
        budget: seconds for compiling steps without some of the variates, the least useful ones first; costs that were
            not measured are NaN. 0 measures none.

    Returns:
        One entry per variate, and what they contribute together.

    Bias: that of ratios of averages.
    Cost: `num` steps with one pull-back per variate; for the costs one compilation per variate.
    """
    draw_key, time_key = jax.random.split(key)
    blocks = step_covariances(draw_key, gradient, params, state, num=num)
    return contributions_from(time_key, blocks, gradient, params, state, budget=budget)


def contributions_from(
    key: Key[Array, ""],
    blocks: BlockCovariances,
    gradient: Gradient,
    params: PyTree,
    state: GradientState,
    *,
    budget: float,
) -> Contributions:
    """The contributions, from given covariances; only costs are still to be measured."""
    covariances = np.moveaxis(blocks, 1, 0) if gradient.rule.by_leaf else blocks.sum(axis=1)[None]
    weights = np.atleast_2d(current_weights(gradient, state))
    names, order = gradient.names, least_useful_first(covariances)
    dispensable = find_dispensable(covariances, order, names)
    seconds, costs = math.nan, {}
    if budget > 0 and names:
        left_out = {_DISPENSABLE: dispensable.names} if dispensable.names else {}
        left_out |= {_ALL: names} | {names[k]: (names[k],) for k in order}
        subsets = {what: [k for k, name in enumerate(names) if name not in out] for what, out in left_out.items()}
        seconds, relative = step_times(key, gradient, params, state, subsets=subsets, budget=budget)
        costs = {what: 1.0 - ratio for what, ratio in relative.items()}
    return Contributions(
        variates=_contributions(covariances, weights, gradient, costs),
        base=mean_of(_base_variances(covariances)),
        combined=mean_of(variance_with(covariances, weights[:, None]).sum(axis=0)),
        best=mean_of(held_out_variances(covariances, np.ones((1, len(names)), bool))[0]),
        dispensable=dataclasses.replace(dispensable, cost=costs.get(_DISPENSABLE, math.nan)),
        step_seconds=seconds,
        cost=costs.get(_ALL, math.nan),
    )


def find_dispensable(covariances: Covariances, order: list[int], names: tuple[str, ...]) -> Dispensable:
    """The longest prefix of the order of removal without which the variance stays within the tolerance."""
    masks = np.ones((len(order) + 1, len(order)), bool)
    for row, k in enumerate(order):
        masks[row + 1 :, k] = False
    left = held_out_variances(covariances, masks)
    growths = [ratio_of(without, left[0]) for without in left]
    number = max(row for row, growth in enumerate(growths) if row == 0 or growth.value <= 1.0 + TOLERANCE)
    share = ratio_of(left[number] - left[0], _base_variances(covariances))
    return Dispensable(tuple(names[k] for k in sorted(order[:number])), growths[number], share, math.nan)


def _contributions(
    covariances: Covariances, weights: np.ndarray, gradient: Gradient, costs: dict[str, float]
) -> tuple[Contribution, ...]:
    everyone, one = np.ones(len(gradient.names), bool), np.eye(len(gradient.names), dtype=bool)
    best, base = best_weights(covariances.mean(axis=1), everyone), _base_variances(covariances)
    (full,) = held_out_variances(covariances, everyone[None])
    alone, without = held_out_variances(covariances, one), held_out_variances(covariances, ~one)

    def named(weight: np.ndarray) -> float | dict[str, float]:
        return dict(zip(gradient.leaves, weight.tolist(), strict=True)) if gradient.rule.by_leaf else float(weight[0])

    return tuple(
        Contribution(
            name=name,
            weight=named(weights[:, k]),
            best_weight=named(best[:, k]),
            alone=ratio_of(base - alone[k], base),
            share=ratio_of(without[k] - full, base),
            growth=ratio_of(without[k], full),
            cost=costs.get(name, math.nan),
        )
        for k, name in enumerate(gradient.names)
    )


def _base_variances(covariances: Covariances) -> np.ndarray:
    """Variance of the base gradient in each group of draws."""
    return covariances[..., 0, 0].sum(axis=0)


def _written(weight: float | dict[str, float]) -> str:
    if isinstance(weight, dict):
        return ", ".join(f"{value:+.2f} ({leaf})" for leaf, value in weight.items())
    return f"{weight:+.2f}"
