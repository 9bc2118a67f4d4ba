# SPDX-License-Identifier: Apache-2.0
"""Ways to replace the function inside a term by an easier one."""

from quell.approximations.base import AbstractApproximation as AbstractApproximation
from quell.approximations.taylor_in_data import TaylorInData as TaylorInData
from quell.approximations.taylor_in_latent import TaylorInLatent as TaylorInLatent
