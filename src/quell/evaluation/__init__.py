# SPDX-License-Identifier: Apache-2.0
"""One draw at the current parameters: what every term and estimator of a step is evaluated on."""

from quell.evaluation.draw import Draw as Draw
from quell.evaluation.draw import Sampler as Sampler
from quell.evaluation.evaluation import Batch as Batch
from quell.evaluation.evaluation import Evaluation as Evaluation
from quell.evaluation.evaluation import batch_factor as batch_factor
from quell.evaluation.problem import Problem as Problem
from quell.evaluation.problem import exact_elbo as exact_elbo
from quell.evaluation.problem import exactly as exactly
from quell.evaluation.problem import has_exact_elbo as has_exact_elbo
from quell.evaluation.problem import has_one_optimum as has_one_optimum
from quell.evaluation.problem import row_by_row as row_by_row
