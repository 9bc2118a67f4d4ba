# SPDX-License-Identifier: Apache-2.0
"""The four terms of the ELBO's gradient."""

from quell.terms.base import AbstractTerm as AbstractTerm
from quell.terms.elbo import Data as Data
from quell.terms.elbo import Prior as Prior
from quell.terms.elbo import Score as Score
from quell.terms.elbo import Variational as Variational
from quell.terms.expectation import expected_grad as expected_grad
from quell.terms.total import Total as Total
from quell.terms.total import elbo as elbo
from quell.terms.total import joint as joint
