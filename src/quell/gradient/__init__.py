# SPDX-License-Identifier: Apache-2.0
"""One step's gradient: a base gradient plus weighted variates, as `init` and `update`."""

from quell.gradient.base import BaseGradient as BaseGradient
from quell.gradient.base import default_base as default_base
from quell.gradient.default import candidate_variates as candidate_variates
from quell.gradient.default import default_variates as default_variates
from quell.gradient.gradient import Gradient as Gradient
from quell.gradient.gradient import GradientInfo as GradientInfo
from quell.gradient.gradient import GradientState as GradientState
from quell.gradient.gradient import list_variates as list_variates
