# SPDX-License-Identifier: Apache-2.0
"""What is known about p: likelihood, prior and data."""

from quell.models.base import AbstractDataExpansion as AbstractDataExpansion
from quell.models.base import AbstractModel as AbstractModel
from quell.models.check import ModelError as ModelError
from quell.models.check import check_likelihood_shape as check_likelihood_shape
from quell.models.check import check_model as check_model
from quell.models.data_expansion import FunctionDataExpansion as FunctionDataExpansion
from quell.models.function import Model as Model
from quell.models.linear import LinearPredictor as LinearPredictor
from quell.models.linear import gaussian_regression as gaussian_regression
from quell.models.linear import logistic_regression as logistic_regression
from quell.models.linear import poisson_regression as poisson_regression
from quell.models.predictor import AbstractPredictor as AbstractPredictor
from quell.models.prior import AbstractPrior as AbstractPrior
from quell.models.prior import FunctionPrior as FunctionPrior
from quell.models.prior import NormalPrior as NormalPrior
