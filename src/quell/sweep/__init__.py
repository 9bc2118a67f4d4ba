# SPDX-License-Identifier: Apache-2.0
"""Many fits: learning rates, seeds and subsets of variates, and one table at the end."""

from quell.sweep.result import SweepResult as SweepResult
from quell.sweep.result import SweepRow as SweepRow
from quell.sweep.routine import sweep as sweep
