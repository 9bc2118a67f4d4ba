# SPDX-License-Identifier: Apache-2.0
"""The variates that a fit uses when none are named."""

from quell.approximations import TaylorInData, TaylorInLatent
from quell.estimators import ClosedForm, Reparameterization
from quell.problem import Problem
from quell.terms import Data, Prior, Variational
from quell.variates.recipe import ControlVariate

LARGEST_HESSIAN = 100
"""Above this dimension a dense Hessian a step is not cheap any more."""


def default_variates(problem: Problem) -> tuple[ControlVariate, ...]:
    """Cheap variates that suit a problem: no second transport, and only what is not refused."""
    rp, cf = Reparameterization(), ClosedForm()
    cheap = [
        ControlVariate(Variational(), rp, cf),
        ControlVariate(Prior(), rp, cf),
        ControlVariate(Data(), rp, Reparameterization(full_data=True), approximation=TaylorInData()),
    ]
    if problem.model.has_cheap_expansion or problem.model.dim <= LARGEST_HESSIAN:
        cheap.append(ControlVariate(Data(), rp, cf, approximation=TaylorInLatent()))
    return tuple(variate for variate in cheap if variate.refuses(problem) is None)
