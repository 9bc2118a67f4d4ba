# SPDX-License-Identifier: Apache-2.0
"""The default method, the loop around the combined gradient, and what a fit returns."""

from quell.fit.algorithm import Algorithm as Algorithm
from quell.fit.algorithm import AlgorithmState as AlgorithmState
from quell.fit.checkpoint.file import CheckpointError as CheckpointError
from quell.fit.checkpoint.settings import Checkpoint as Checkpoint
from quell.fit.choice import Choice as Choice
from quell.fit.convergence import EarlyStopping as EarlyStopping
from quell.fit.history import History as History
from quell.fit.linear_response import LinearResponse as LinearResponse
from quell.fit.linear_response import Response as Response
from quell.fit.natural_gradient import harmonic_schedule as harmonic_schedule
from quell.fit.natural_gradient import natural_gradient as natural_gradient
from quell.fit.options import FitOptions as FitOptions
from quell.fit.progress import FitProgress as FitProgress
from quell.fit.result import FitResult as FitResult
from quell.fit.routine import fit as fit
from quell.fit.routine import fit_many as fit_many
from quell.fit.seconds import Seconds as Seconds
from quell.fit.status import DivergenceError as DivergenceError
from quell.fit.status import Status as Status
