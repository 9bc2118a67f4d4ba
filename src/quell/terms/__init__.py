# SPDX-License-Identifier: Apache-2.0
"""The four terms of the ELBO's gradient."""

from quell.terms.base import AbstractTerm as AbstractTerm
from quell.terms.closed_form import batch_factor as batch_factor
from quell.terms.closed_form import expected_grad as expected_grad
from quell.terms.data import Data as Data
from quell.terms.prior import Prior as Prior
from quell.terms.score import Score as Score
from quell.terms.total import Total as Total
from quell.terms.total import elbo as elbo
from quell.terms.total import joint as joint
from quell.terms.variational import Variational as Variational
