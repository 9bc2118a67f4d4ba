# SPDX-License-Identifier: Apache-2.0
"""The recipe for control variates, the variates of the paper and of the literature, and the catalogue of all."""

from quell.variates import literature as literature
from quell.variates.catalogue import Catalogue as Catalogue
from quell.variates.catalogue import catalogue as catalogue
from quell.variates.paper import VARIATES as VARIATES
from quell.variates.recipe import ControlVariate as ControlVariate
