# SPDX-License-Identifier: Apache-2.0
"""The loop around the quiet gradient, and what a fit returns."""

from quell.fit.algorithm import Algorithm as Algorithm
from quell.fit.algorithm import AlgorithmState as AlgorithmState
from quell.fit.callback import FitProgress as FitProgress
from quell.fit.checkpoint import Checkpoint as Checkpoint
from quell.fit.checkpoint_file import CheckpointError as CheckpointError
from quell.fit.choice import Choice as Choice
from quell.fit.choice import Trial as Trial
from quell.fit.early_stopping import EarlyStopping as EarlyStopping
from quell.fit.result import FitResult as FitResult
from quell.fit.routine import fit as fit
from quell.fit.routine import fit_many as fit_many
