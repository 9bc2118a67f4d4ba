# SPDX-License-Identifier: Apache-2.0
"""quell: quiet gradients for variational inference.

Many control variates from one recipe, combined by one small regularised solve, for any optimiser.
"""

from typing import Any

from quell import adapters as adapters
from quell import diagnostics as diagnostics
from quell import paper as paper
from quell.adapters import from_log_density as from_log_density
from quell.approximations import AnchoredQuadratic as AnchoredQuadratic
from quell.approximations import Baseline as Baseline
from quell.approximations import Concrete as Concrete
from quell.approximations import FittedQuadratic as FittedQuadratic
from quell.approximations import JaakkolaJordan as JaakkolaJordan
from quell.approximations import Surrogate as Surrogate
from quell.approximations import TaylorInData as TaylorInData
from quell.approximations import TaylorInLatent as TaylorInLatent
from quell.combine import NormalWishart as NormalWishart
from quell.combine import Rule as Rule
from quell.core.compiled_folder import keep_compiled as keep_compiled
from quell.core.processes import ProcessLost as ProcessLost
from quell.core.version import VERSION
from quell.data import DiskRows as DiskRows
from quell.data import rows_from_iterator as rows_from_iterator
from quell.data import rows_from_parquet as rows_from_parquet
from quell.estimators import BonnetPrice as BonnetPrice
from quell.estimators import ChangeOfVariables as ChangeOfVariables
from quell.estimators import ClosedForm as ClosedForm
from quell.estimators import ConditionalScoreFunction as ConditionalScoreFunction
from quell.estimators import GeneralizedReparameterization as GeneralizedReparameterization
from quell.estimators import LocalReparameterization as LocalReparameterization
from quell.estimators import Reparameterization as Reparameterization
from quell.estimators import ScoreFunction as ScoreFunction
from quell.estimators import TransposedReparameterization as TransposedReparameterization
from quell.evaluation import Draw as Draw
from quell.evaluation import Problem as Problem
from quell.evaluation import Sampler as Sampler
from quell.evaluation import exact_elbo as exact_elbo
from quell.families import CHOLESKY as CHOLESKY
from quell.families import MIRRORED as MIRRORED
from quell.families import SYMMETRIC as SYMMETRIC
from quell.families import AbstractFamily as AbstractFamily
from quell.families import Bernoulli as Bernoulli
from quell.families import Beta as Beta
from quell.families import BetaParams as BetaParams
from quell.families import Capability as Capability
from quell.families import Categorical as Categorical
from quell.families import FullRank as FullRank
from quell.families import Gamma as Gamma
from quell.families import GammaParams as GammaParams
from quell.families import LocationScale as LocationScale
from quell.families import Logits as Logits
from quell.families import LowRank as LowRank
from quell.families import LowRankParams as LowRankParams
from quell.families import MeanField as MeanField
from quell.families import Product as Product
from quell.fit import Algorithm as Algorithm
from quell.fit import AlgorithmState as AlgorithmState
from quell.fit import Checkpoint as Checkpoint
from quell.fit import CheckpointError as CheckpointError
from quell.fit import Choice as Choice
from quell.fit import DivergenceError as DivergenceError
from quell.fit import EarlyStopping as EarlyStopping
from quell.fit import FitOptions as FitOptions
from quell.fit import FitProgress as FitProgress
from quell.fit import FitResult as FitResult
from quell.fit import History as History
from quell.fit import LinearResponse as LinearResponse
from quell.fit import Response as Response
from quell.fit import Seconds as Seconds
from quell.fit import Status as Status
from quell.fit import fit as fit
from quell.fit import fit_many as fit_many
from quell.fit import harmonic_schedule as harmonic_schedule
from quell.fit import natural_gradient as natural_gradient
from quell.gradient import BaseGradient as BaseGradient
from quell.gradient import Gradient as Gradient
from quell.gradient import GradientInfo as GradientInfo
from quell.gradient import GradientState as GradientState
from quell.gradient import candidate_variates as candidate_variates
from quell.gradient import default_base as default_base
from quell.gradient import default_variates as default_variates
from quell.models import LinearPredictor as LinearPredictor
from quell.models import Model as Model
from quell.models import ModelError as ModelError
from quell.models import NormalPrior as NormalPrior
from quell.models import check_model as check_model
from quell.models import gaussian_regression as gaussian_regression
from quell.models import logistic_regression as logistic_regression
from quell.models import poisson_regression as poisson_regression
from quell.sweep import SweepResult as SweepResult
from quell.sweep import SweepRow as SweepRow
from quell.sweep import sweep as sweep
from quell.terms import Data as Data
from quell.terms import Prior as Prior
from quell.terms import Score as Score
from quell.terms import Variational as Variational
from quell.variates import Catalogue as Catalogue
from quell.variates import ControlVariate as ControlVariate
from quell.variates import catalogue as catalogue
from quell.variates import literature as literature

__version__ = VERSION


def __getattr__(name: str) -> Any:
    """Import an adapter when it is first used."""
    if name == "from_numpyro":
        return adapters.from_numpyro
    if name == "from_pymc":
        return adapters.from_pymc
    if name == "Flow":
        return adapters.Flow
    raise AttributeError(f"module 'quell' has no attribute {name!r}")
