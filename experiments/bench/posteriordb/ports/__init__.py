# SPDX-License-Identifier: Apache-2.0
"""NumPyro ports of the posteriors of posteriordb that have reference draws; importing this registers all of them."""

import experiments.bench.posteriordb.ports.differential_equations
import experiments.bench.posteriordb.ports.gaussian_processes
import experiments.bench.posteriordb.ports.mixtures
import experiments.bench.posteriordb.ports.proper_priors
import experiments.bench.posteriordb.ports.regressions
import experiments.bench.posteriordb.ports.time_series  # noqa: F401
from experiments.bench.posteriordb.ports.port import PORTS as PORTS
