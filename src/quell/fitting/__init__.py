# SPDX-License-Identifier: Apache-2.0
"""The loop around the quiet gradient, and what a fit returns."""

from quell.fitting.algorithm import Algorithm as Algorithm
from quell.fitting.algorithm import AlgorithmState as AlgorithmState
from quell.fitting.callback import FitProgress as FitProgress
from quell.fitting.checkpoint import Checkpoint as Checkpoint
from quell.fitting.checkpoint_file import CheckpointError as CheckpointError
from quell.fitting.choice import Choice as Choice
from quell.fitting.choice import Trial as Trial
from quell.fitting.early_stopping import EarlyStopping as EarlyStopping
from quell.fitting.result import FitResult as FitResult
from quell.fitting.routine import fit as fit
from quell.fitting.routine import fit_many as fit_many
