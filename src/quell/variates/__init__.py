# SPDX-License-Identifier: Apache-2.0
"""The recipe for control variates, and the gradient they are added to."""

from quell.variates import zoo as zoo
from quell.variates.base_gradient import BaseGradient as BaseGradient
from quell.variates.base_gradient import default_base as default_base
from quell.variates.default import candidate_variates as candidate_variates
from quell.variates.default import default_variates as default_variates
from quell.variates.default import first_active as first_active
from quell.variates.listing import Catalogue as Catalogue
from quell.variates.listing import catalogue as catalogue
from quell.variates.named import VARIATES as VARIATES
from quell.variates.recipe import ControlVariate as ControlVariate
