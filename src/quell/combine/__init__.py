# SPDX-License-Identifier: Apache-2.0
"""Moments, weights and the rule that combines variates; arrays only, no model."""

from quell.combine.moments import Held as Held
from quell.combine.moments import Moments as Moments
from quell.combine.moments import MomentState as MomentState
from quell.combine.moments import averages as averages
from quell.combine.moments import finite_rows as finite_rows
from quell.combine.moments import init_moments as init_moments
from quell.combine.moments import observe as observe
from quell.combine.moments import samples_per_mass as samples_per_mass
from quell.combine.rule import Rule as Rule
from quell.combine.solve import NormalWishart as NormalWishart
from quell.combine.solve import expected_sq_norm as expected_sq_norm
from quell.combine.solve import isotropic as isotropic
from quell.combine.solve import posterior as posterior
from quell.combine.solve import solve as solve
