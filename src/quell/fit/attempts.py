# SPDX-License-Identifier: Apache-2.0
"""A fit, and another where it was not enough: of more nodes, of draws instead of them, of sampled gradients."""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from quell.evaluation.expectation import MOST_LEVEL, USUAL_LEVEL
from quell.families import AbstractFamily
from quell.fit.common_draws import ExactElbo
from quell.fit.driver import run_plan
from quell.fit.newton import Newton
from quell.fit.options import FitOptions
from quell.fit.plan import FitPlan
from quell.fit.progress import ProgressBar
from quell.fit.result import FitResult
from quell.fit.status import Status
from quell.fit.step import init_loop
from quell.fit.warm_start import warm_start_addends
from quell.models import AbstractModel

ERROR_SHARE, ROUNDING = 0.1, 4.0
"""Of the tolerance, and besides of units of rounding of the ELBO, that the nodes of exact expectations may miss."""

ENDED = (Status.DIVERGED, Status.INTERRUPTED, Status.STOPPED)
"""Before its time: no other fit follows."""

WORTH_SAMPLING = 1.0
"""Nats to the optimum that make sampled gradients worth a try, whose noise hides smaller ones."""


class Task(NamedTuple):
    """What is to be fitted, and how."""

    options: FitOptions
    model: AbstractModel
    family: AbstractFamily
    key: Key[Array, "*fit"]

    def plan(self, level: int | None = 0, *, may_take_newton: bool = True) -> FitPlan:
        """The plan of an attempt; see `FitPlan.of`."""
        return FitPlan.of(*self, level, may_take_newton=may_take_newton)


def fit_task(task: Task, bar: ProgressBar) -> list[FitResult]:
    """Run the fits, after that of a Gaussian for a family that begins with one; the better of both is returned."""
    family, given = task.family.begins_with, task.options
    if family is None:
        return _fits(task, bar)
    if given.params is not None:
        raise ValueError("`params` of a flow belong to its Gaussian; give them with `family=result.problem.family`.")
    own = FitOptions(
        steps=given.steps,
        tolerance=given.tolerance,
        max_skipped=given.max_skipped,
        callback=given.callback,
        mesh=given.mesh,
        khat=given.khat,
    )
    first = Task(own, task.model, family, task.key if task.key.ndim == 0 else task.key[0])
    gaussian = _fits(first, bar)[0]
    if gaussian.status in ENDED:
        return [gaussian] * task.key.size
    task = task._replace(family=task.family.around(family.gaussian(gaussian.params)))
    return [_better_than(gaussian, one) for one in _fits(task, bar)]


def _fits(task: Task, bar: ProgressBar) -> list[FitResult]:
    """Run the fits, where rows are many after one of some of them, from whose end they go on."""
    plan, options = task.plan(), task.options
    num = warm_start_addends(plan.algorithm.gradient.problem)
    is_plain = task.key.ndim == 0 and options.params is None and options.checkpoint is None
    if num is None or not is_plain or not isinstance(plan.algorithm, Newton):
        return results_of(task, plan, bar)
    newton = plan.algorithm
    (first,) = _unless_astray(dataclasses.replace(plan, algorithm=_on_some_addends(newton, num)), bar)
    if first.status in (Status.INTERRUPTED, Status.STOPPED):
        return [dataclasses.replace(first, gradient=newton.gradient, measured_gap=None)]  # a result for all rows
    first = dataclasses.replace(first, num_gradients=math.ceil(first.num_gradients * _share(first, newton)))
    options = dataclasses.replace(options, steps=max(options.steps - first.history.num_steps, 1))
    task = task._replace(options=options)
    plan = dataclasses.replace(plan, seconds=0.0, options=options)  # those of reading are the first fit's
    if first.status is Status.CONVERGED:
        task = task._replace(options=dataclasses.replace(options, params=first.params))
        newton = dataclasses.replace(newton, most_starts=1)
        start = init_loop(newton, first.params, averages=False)
        plan = dataclasses.replace(plan, algorithm=newton, start=start, options=task.options)
    goes_on = first.status is Status.CONVERGED
    return [_after(first, one, goes_on=goes_on) for one in results_of(task, plan, bar)]


def _unless_astray(plan: FitPlan, bar: ProgressBar) -> list[FitResult]:
    """Run the fits of a plan, and all again from the first start alone where the best start of one was astray.

    Fits that were ended before their time, or keep a checkpoint, which has no place for others, stay as they are.

    Cost: where starts differ, that of judging the result, which is judged anyway; where one is astray, other fits.
    """
    results, steps = run_plan(plan, bar), plan.options.steps
    has_ended = any(result.status in ENDED or result.history.num_steps >= steps for result in results)
    if plan.options.checkpoint is not None or has_ended or not any(map(is_astray, results)):
        return results
    left = steps - max(result.history.num_steps for result in results)
    from_first = dataclasses.replace(
        plan,
        algorithm=dataclasses.replace(plan.algorithm, most_starts=1),
        options=dataclasses.replace(plan.options, steps=left),
        seconds=0.0,
    )
    pairs = zip(results, run_plan(from_first, bar), strict=True)
    return [
        dataclasses.replace(_after(one, other), starts_differ=True) if is_astray(one) else one for one, other in pairs
    ]


def is_astray(result: FitResult) -> bool:
    """Whether the best start is where numbers mean nothing: its ELBO is off by more than a nat for each addend.

    That is what nodes miss, or what another program finds it to be. In single precision a difference of two values of
    `lgamma` is any number where they are large, and a start may end where freedoms of Student's t are.

    Args:
        result: of a fit that has ended by itself, so that its last step saw its parameters.
    """
    expectation = result.problem.expectation
    if expectation is None or not result.starts_differ:
        return False
    seen, again = float(result.history.elbo[-1]), result.final_elbo.value
    addends = float(sum(jnp.sum(jnp.abs(group.weight)) for group in expectation.groups))
    return not all(error <= addends for error in (result.quadrature_error.by_nodes, abs(seen - again)))


def _share(first: FitResult, newton: Newton) -> float:
    """Of all evaluations of addends that those of the first fit are."""
    some, every = first.problem.expectation, newton.gradient.problem.expectation
    assert some is not None
    assert every is not None
    return some.num_evaluations / every.num_evaluations


def _on_some_addends(newton: Newton, num: int) -> Newton:
    """The same steps for the expectations of some addends that stand for all."""
    whole = newton.gradient.problem
    assert whole.expectation is not None
    problem = dataclasses.replace(whole, expectation=whole.expectation.some(num))
    gradient = dataclasses.replace(newton.gradient, problem=problem)
    return dataclasses.replace(newton, gradient=gradient, objective=ExactElbo(problem))


def _better_than(gaussian: FitResult, flow: FitResult) -> FitResult:
    """The fit of a family that began with a Gaussian, or that Gaussian, which it may be worse than."""
    name, before, after = type(gaussian.problem.family).__name__, gaussian.sampled_elbo.value, flow.sampled_elbo.value
    if after >= before or (math.isnan(before) and math.isfinite(after)):
        choice = flow.choice
        if choice is not None:
            choice = dataclasses.replace(choice, reason=f"Around a {name} of ELBO {before:.2f}. {choice.reason}")
        return dataclasses.replace(_after(gaussian, flow, goes_on=True), choice=choice)
    reason = f"{type(flow.problem.family).__name__} was not better than the {name} it began with, which is returned."
    choice = None if gaussian.choice is None else dataclasses.replace(gaussian.choice, reason=reason)
    status = flow.status if flow.status in ENDED else gaussian.status
    return dataclasses.replace(_after(flow, gaussian), choice=choice, status=status)


def results_of(task: Task, plan: FitPlan, bar: ProgressBar) -> list[FitResult]:
    """Run the fits, and others where they were not enough.

    Exact expectations that need more nodes get them, and draws where more do not help. Where Newton steps on draws have
    given up, sampled gradients may do better: the better of both is returned.
    """
    results, steps = _unless_astray(plan, bar), task.options.steps
    has_checkpoint = task.options.checkpoint is not None  # which has no place for a second fit
    if has_checkpoint or any(result.status is Status.INTERRUPTED for result in results):
        return results
    if plan.choice is not None and plan.choice.base == "common draws":
        if not any(_is_far(result, steps) for result in results):
            return results
        others = zip(results, run_plan(task.plan(may_take_newton=False), bar), strict=True)
        return [better_of(one, other) if _is_far(one, steps) else one for one, other in others]
    if any(result.status is Status.STOPPED or result.history.num_steps >= steps for result in results):
        return results
    expectation = results[0].problem.expectation
    if expectation is None:
        return results
    needs_nodes = expectation.level < MOST_LEVEL and any(needs_more_nodes(plan, one) for one in results)
    if not (needs_nodes or any(needs_draws(plan, one) for one in results)):
        return results
    goes_on = expectation.level < USUAL_LEVEL and task.key.ndim == 0  # from where the fewest nodes led
    if goes_on:
        task = task._replace(options=dataclasses.replace(task.options, params=results[0].params))
    try:
        following = task.plan(expectation.level + 1 if needs_nodes else None)
    except ValueError:  # what samples would take is not affordable
        return results
    if following.is_sampled:
        return results  # what they miss is known, and told; the noise of sampled gradients would not be
    pairs = zip(results, results_of(task, following, bar), strict=True)
    return [_after(before, after, goes_on=goes_on) for before, after in pairs]


def _is_far(newton: FitResult, steps: int) -> bool:
    """Whether Newton steps have ended by themselves, so far from an optimum that sampled gradients may do better."""
    gap = newton.measured_gap
    has_given_up = newton.status is Status.NOT_CONVERGED and newton.history.num_steps < steps
    return has_given_up and (gap is None or not gap.value + gap.standard_error < WORTH_SAMPLING)


def better_of(newton: FitResult, sampled: FitResult) -> FitResult:
    """Of two fits that with the higher ELBO; its work is that of both, and it tells that there were two."""
    value, other = newton.sampled_elbo.value, sampled.sampled_elbo.value
    if sampled.status is Status.DIVERGED or not (other > value or (math.isnan(value) and math.isfinite(other))):
        is_ended = sampled.status in (Status.INTERRUPTED, Status.STOPPED)
        return dataclasses.replace(_after(sampled, newton), status=sampled.status if is_ended else newton.status)
    assert sampled.choice is not None, "variates were chosen"
    choice = dataclasses.replace(sampled.choice, reason=f"Newton steps on draws gave up. {sampled.choice.reason}")
    return dataclasses.replace(_after(newton, sampled, goes_on=True), choice=choice)


def _after(before: FitResult, after: FitResult, *, goes_on: bool = False) -> FitResult:
    """The later of two fits, with the work of both; of starts, what both have shown if it goes on from the first."""
    shown = (before.starts_differ, after.starts_differ) if goes_on else (after.starts_differ,)
    return dataclasses.replace(
        after,
        seconds=before.seconds + after.seconds,
        num_gradients=before.num_gradients + after.num_gradients,
        starts_differ=any(shown) or (None if None in shown else False),
    )


def needs_more_nodes(plan: FitPlan, result: FitResult) -> bool:
    """Whether the nodes of exact expectations miss so much that more of them may lead elsewhere."""
    return not result.quadrature_error.by_nodes < ERROR_SHARE * plan.options.tolerance + _rounding(result)


def needs_draws(plan: FitPlan, result: FitResult) -> bool:
    """Whether exact expectations miss more than the tolerance, which is what draws miss."""
    return not sum(result.quadrature_error) < plan.options.tolerance + _rounding(result)


def _rounding(result: FitResult) -> float:
    """Of the ELBO itself: what cancelling summands lose is not excused, but counted as missed."""
    return ROUNDING * float(jnp.finfo(jnp.result_type(float)).eps) * abs(result.final_elbo.value)
