# SPDX-License-Identifier: Apache-2.0
"""The variates that a fit uses when none are named."""

import jax

from quell.approximations import Baseline, TaylorInData, TaylorInLatent
from quell.estimators import ClosedForm
from quell.models import AbstractModel
from quell.problem import Problem
from quell.terms import Data, Prior, Score, Variational, elbo
from quell.variates.base_gradient import default_base
from quell.variates.recipe import ControlVariate

LARGEST_HESSIAN = 100
"""Above this many products with a Hessian a step, in the latent or in the data, they are not cheap any more."""


def default_variates(problem: Problem) -> tuple[ControlVariate, ...]:
    """Cheap variates that suit a problem: no second transport, and only what is not refused.

    Taylor expansions are cheap for a linear predictor. For a `Model`, whose Hessians come from automatic
    differentiation, one in the latent is taken where the latent has at most 100 coordinates, and one in the data
    where a datum has at most 100 numbers. Where the base gradient is made of scores, the score itself and the
    leave-one-out baseline come first; and nothing is expanded in a latent that is discrete.
    """
    kind, cf, model = type(default_base(problem).data), ClosedForm(), problem.model
    main, all_data = kind(), kind(full_data=True)  # pyright: ignore[reportCallIssue]
    moves = bool(problem.family.transports)
    cheap = [] if moves else [ControlVariate(Score(), main, cf), ControlVariate(elbo(), main, cf, Baseline())]
    cheap += [ControlVariate(Variational(), main, cf), ControlVariate(Prior(), main, cf)]
    if model.has_cheap_expansion or _datum_size(model) <= LARGEST_HESSIAN:
        cheap.append(ControlVariate(Data(), main, all_data, approximation=TaylorInData()))
    if moves and (model.has_cheap_expansion or model.dim <= LARGEST_HESSIAN):
        cheap.append(ControlVariate(Data(), main, cf, approximation=TaylorInLatent()))
    return tuple(variate for variate in cheap if variate.refuses(problem) is None)


def _datum_size(model: AbstractModel) -> int:
    return sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(model.data))
