# SPDX-License-Identifier: Apache-2.0
"""The variates that a fit uses when none are named."""

import math

from quell.approximations import AnchoredQuadratic, Baseline, TaylorInData, TaylorInLatent
from quell.data.access import datum_size
from quell.estimators import AbstractEstimator, ClosedForm
from quell.evaluation import Problem, Sampler
from quell.gradient.base import default_base
from quell.terms import Data, Prior, Score, Variational, elbo
from quell.variates.recipe import ControlVariate

LARGEST_DATUM = 100
"""Above this many numbers in a datum, as many products with a Hessian in the data are not cheap any more."""

LARGEST_HESSIAN = 20
"""Above this many coordinates, a Hessian of each minibatch may cost more than the variance that it removes is worth."""

DEFAULT_BATCH = 100
"""Rows per step, where no sampler says how many."""

PRIOR_EVERY = 10
"""Steps between refreshes of a prior's quadratic, which sees no data."""

LONGEST_WAIT = 1000
"""An anchor that could be refreshed only after more steps than this is left out."""


def default_variates(problem: Problem, sampler: Sampler | None = None) -> tuple[ControlVariate, ...]:
    """Cheap variates that suit a problem: no second transport, and only what is not refused.

    Of a linear predictor the data term is expanded in the latent and in the data. Of a `Model`, whose Hessians come
    from automatic differentiation, the data term is a quadratic around an anchor, refreshed so seldom that a refresh
    sees at most twice the rows of the steps between; and where the latent has at most 20 coordinates each minibatch is
    expanded in the latent too. Where there are so many data that an anchor would have to wait too long, minibatches are
    expanded in the data instead, if a datum has at most 100 numbers. A prior that is no quadratic gets an anchored one.

    Where the base gradient is made of scores, the score itself and the leave-one-out baseline come first; and nothing
    is expanded in a latent that is discrete. `experiments/bench/studies/general_models.py` measures these choices.

    Args:
        problem: model and family.
        sampler: replicates and minibatches, where they are known: what would be zero for them is left out.

    Returns:
        Any number of variates, for `Gradient` or `fit`.
    """
    main = type(default_base(problem).data)()
    found = [*_of_scores(problem, sampler, main), ControlVariate(Variational(), main, ClosedForm())]
    found += [*_of_prior(problem, main), *_of_data(problem, sampler, main)]
    return tuple(variate for variate in found if variate.refuses(problem) is None)


def candidate_variates(problem: Problem, sampler: Sampler) -> tuple[ControlVariate, ...]:
    """What `variates="auto"` uses where the gradient is sampled: those with a closed form on one side.

    For linear predictors under a Gaussian family the closed form of the data term takes the place of its expansions,
    and on minibatches an anchored quadratic corrects for the subsampling. Elsewhere they are the default ones, without
    differences of two samples, of which no rule says where they pay.

    Args:
        problem: model and family.
        sampler: replicates and minibatches.

    Returns:
        A few variates, for `Gradient` or `fit`.
    """
    main = type(default_base(problem).data)()
    if problem.family.transports and Data().refuses_closed_form(problem) is None:
        found = [ControlVariate(Variational(), main, ClosedForm()), *_of_prior(problem, main)]
        found.append(ControlVariate(Data(), main, ClosedForm()))
        if _subsamples(problem, sampler):
            anchored = AnchoredQuadratic(every=_wait(problem, sampler, share=2.0, products=1))
            found.append(ControlVariate(Data(), ClosedForm(), ClosedForm(full_data=True), anchored))
        return tuple(variate for variate in found if variate.refuses(problem) is None)
    found = default_variates(problem, sampler)
    return tuple(variate for variate in found if isinstance(variate.right, ClosedForm))


def _of_scores(problem: Problem, sampler: Sampler | None, main: AbstractEstimator) -> list[ControlVariate]:
    if problem.family.transports:
        return []
    scores = [ControlVariate(Score(), main, ClosedForm())]
    if sampler is None or sampler.num_replicates > 1:
        scores.append(ControlVariate(elbo(), main, ClosedForm(), Baseline()))
    return scores


def _of_prior(problem: Problem, main: AbstractEstimator) -> list[ControlVariate]:
    if Prior().refuses_closed_form(problem) is None:
        return [ControlVariate(Prior(), main, ClosedForm())]
    anchored = ControlVariate(Prior(), main, ClosedForm(), AnchoredQuadratic(every=PRIOR_EVERY))
    return [anchored] if problem.family.transports else []


def _of_data(problem: Problem, sampler: Sampler | None, main: AbstractEstimator) -> list[ControlVariate]:
    model, subsamples = problem.model, _subsamples(problem, sampler)
    in_data = ControlVariate(Data(), main, type(main)(full_data=True), TaylorInData())  # pyright: ignore[reportCallIssue]
    in_latent = ControlVariate(Data(), main, ClosedForm(), TaylorInLatent())
    moves, wait = bool(problem.family.transports), _wait(problem, sampler)
    if model.has_cheap_expansion:
        return [in_data] * subsamples + [in_latent] * moves
    anchored = ControlVariate(Data(), main, ClosedForm(full_data=True), AnchoredQuadratic(every=wait))
    if moves and wait <= LONGEST_WAIT and anchored.refuses(problem) is None:
        return [anchored] + [in_latent] * (subsamples and model.dim <= LARGEST_HESSIAN)
    small_datum = datum_size(model.data) <= LARGEST_DATUM
    return [in_data] * (subsamples and small_datum) + [in_latent] * (moves and model.dim <= LARGEST_HESSIAN)


def _subsamples(problem: Problem, sampler: Sampler | None) -> bool:
    if sampler is None or sampler.batch_size is None:
        return sampler is None
    return sampler.replace or sampler.batch_size < problem.model.num_data


def _wait(problem: Problem, sampler: Sampler | None, *, share: float = 0.5, products: int | None = None) -> int:
    """Steps between refreshes: so many that they see all rows of a refresh this many times."""
    rows = problem.model.num_data
    a_step = min(rows, DEFAULT_BATCH) if sampler is None else sampler.num_replicates * (sampler.batch_size or rows)
    anchored = AnchoredQuadratic()
    passes = anchored.num_products(problem.model.dim) if products is None else products
    return max(anchored.every, math.ceil(share * rows * passes / a_step))
