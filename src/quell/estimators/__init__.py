# SPDX-License-Identifier: Apache-2.0
"""Ways to turn a term into a random gradient."""

from quell.estimators.base import AbstractEstimator as AbstractEstimator
from quell.estimators.bonnet_price import BonnetPrice as BonnetPrice
from quell.estimators.change_of_variables import ChangeOfVariables as ChangeOfVariables
from quell.estimators.conditional import ConditionalScoreFunction as ConditionalScoreFunction
from quell.estimators.local import LocalReparameterization as LocalReparameterization
from quell.estimators.paper import ClosedForm as ClosedForm
from quell.estimators.paper import GeneralizedReparameterization as GeneralizedReparameterization
from quell.estimators.paper import Reparameterization as Reparameterization
from quell.estimators.paper import ScoreFunction as ScoreFunction
from quell.estimators.transposed import TransposedReparameterization as TransposedReparameterization
