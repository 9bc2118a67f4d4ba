# SPDX-License-Identifier: Apache-2.0
"""The recipe for control variates, and the gradient they are added to."""

from quell.variates.base_gradient import BaseGradient as BaseGradient
from quell.variates.default import default_variates as default_variates
from quell.variates.recipe import ControlVariate as ControlVariate
from quell.variates.recipe import score_variate as score_variate
