# SPDX-License-Identifier: Apache-2.0
"""The paper: its data sets, and its control variates by name."""

from quell.paper.datasets import NAMES as NAMES
from quell.paper.datasets import Dataset as Dataset
from quell.paper.datasets import DatasetUnavailable as DatasetUnavailable
from quell.paper.datasets import load as load
from quell.paper.ensembles import SUBSETS as SUBSETS
from quell.paper.ensembles import variates as variates
from quell.variates import VARIATES as VARIATES
