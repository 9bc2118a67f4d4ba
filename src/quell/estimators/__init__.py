# SPDX-License-Identifier: Apache-2.0
"""Ways to turn a term into a random gradient."""

from quell.estimators.base import AbstractEstimator as AbstractEstimator
from quell.estimators.bonnet_price import BonnetPrice as BonnetPrice
from quell.estimators.closed_form import ClosedForm as ClosedForm
from quell.estimators.conditional import ConditionalScoreFunction as ConditionalScoreFunction
from quell.estimators.generalized import GeneralizedReparameterization as GeneralizedReparameterization
from quell.estimators.local import LocalReparameterization as LocalReparameterization
from quell.estimators.reparameterization import Reparameterization as Reparameterization
from quell.estimators.score_function import ScoreFunction as ScoreFunction
from quell.estimators.transposed import TransposedReparameterization as TransposedReparameterization
