# SPDX-License-Identifier: Apache-2.0
"""Many fits: learning rates, seeds and subsets of variates, and one table at the end."""

from quell.sweeping.result import SweepResult as SweepResult
from quell.sweeping.result import SweepRow as SweepRow
from quell.sweeping.routine import sweep as sweep
