# SPDX-License-Identifier: Apache-2.0
"""The quiet gradient, the loop around it and what a fit returns."""

from quell.fitting.gradient import Gradient as Gradient
from quell.fitting.gradient import GradientInfo as GradientInfo
from quell.fitting.gradient import GradientState as GradientState
from quell.fitting.history import History as History
from quell.fitting.result import FitResult as FitResult
from quell.fitting.routine import fit as fit
