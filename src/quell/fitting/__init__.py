# SPDX-License-Identifier: Apache-2.0
"""The loop around the quiet gradient, and what a fit returns."""

from quell.fitting.result import FitResult as FitResult
from quell.fitting.routine import fit as fit
