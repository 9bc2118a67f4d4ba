# SPDX-License-Identifier: Apache-2.0
"""Ways to replace the function inside a term by an easier one."""

from quell.approximations.anchored import AnchoredQuadratic as AnchoredQuadratic
from quell.approximations.base import AbstractApproximation as AbstractApproximation
from quell.approximations.base import approximate as approximate
from quell.approximations.base import refuses_to_approximate as refuses_to_approximate
from quell.approximations.baseline import Baseline as Baseline
from quell.approximations.bound import JaakkolaJordan as JaakkolaJordan
from quell.approximations.concrete import Concrete as Concrete
from quell.approximations.fitted import FittedQuadratic as FittedQuadratic
from quell.approximations.surrogate import Surrogate as Surrogate
from quell.approximations.taylor_in_data import TaylorInData as TaylorInData
from quell.approximations.taylor_in_latent import TaylorInLatent as TaylorInLatent
