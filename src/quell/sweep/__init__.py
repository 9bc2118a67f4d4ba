# SPDX-License-Identifier: Apache-2.0
"""Many fits: learning rates, seeds and subsets of variates, and one table at the end."""

from quell.sweep.result import SweepResult as SweepResult
from quell.sweep.routine import sweep as sweep
from quell.sweep.row import SweepRow as SweepRow
