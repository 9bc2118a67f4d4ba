# SPDX-License-Identifier: Apache-2.0
"""Many fits: learning rates, seeds and subsets of variates, and one table at the end."""

from quell.sweeping.result import SweepResult as SweepResult
from quell.sweeping.routine import sweep as sweep
from quell.sweeping.row import SweepRow as SweepRow
