# SPDX-License-Identifier: Apache-2.0
"""Moments, weights and the rule that combines variates; arrays only, no model."""

from quell.combine.rule import Held as Held
from quell.combine.rule import MomentState as MomentState
from quell.combine.rule import Rule as Rule
from quell.combine.rule import averages as averages
from quell.combine.rule import finite_rows as finite_rows
from quell.combine.rule import init_moments as init_moments
from quell.combine.rule import observe as observe
from quell.combine.rule import samples_per_mass as samples_per_mass
from quell.combine.solve import Moments as Moments
from quell.combine.solve import NormalWishart as NormalWishart
from quell.combine.solve import expected_sq_norm as expected_sq_norm
from quell.combine.solve import isotropic as isotropic
from quell.combine.solve import posterior as posterior
from quell.combine.solve import solve as solve
