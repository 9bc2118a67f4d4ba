# SPDX-License-Identifier: Apache-2.0
"""Functions of a finished fit: gradient variance, contributions of variates, summary, k-hat, report."""

from quell.core.estimate import Estimate as Estimate
from quell.diagnostics.advice import Advice as Advice
from quell.diagnostics.advice import Level as Level
from quell.diagnostics.contribution import Contribution as Contribution
from quell.diagnostics.contribution import Contributions as Contributions
from quell.diagnostics.contribution import Dispensable as Dispensable
from quell.diagnostics.contribution import contributions as contributions
from quell.diagnostics.elbo import estimate_elbo as estimate_elbo
from quell.diagnostics.khat import Khat as Khat
from quell.diagnostics.khat import estimate_khat as estimate_khat
from quell.diagnostics.khat import khat_threshold as khat_threshold
from quell.diagnostics.pareto import Psis as Psis
from quell.diagnostics.pareto import psis as psis
from quell.diagnostics.plots import plot_contributions as plot_contributions
from quell.diagnostics.plots import plot_elbo as plot_elbo
from quell.diagnostics.plots import plot_norms as plot_norms
from quell.diagnostics.plots import plot_variance as plot_variance
from quell.diagnostics.plots import plot_weights as plot_weights
from quell.diagnostics.summary import Summary as Summary
from quell.diagnostics.summary import SummaryRow as SummaryRow
from quell.diagnostics.summary import summarise as summarise
from quell.diagnostics.variance import BlockVariance as BlockVariance
from quell.diagnostics.variance import GradientVariance as GradientVariance
from quell.diagnostics.variance import gradient_variance as gradient_variance
