# SPDX-License-Identifier: Apache-2.0
"""The benchmark against peers: wall-clock from a compiled start to within a nat, and a tenth, of the optimum."""

from quell.bench.gaussian import Gaussian as Gaussian
from quell.bench.problems import BenchProblem as BenchProblem
from quell.bench.problems import make_problem as make_problem
from quell.bench.runner import AbstractRunner as AbstractRunner
from quell.bench.runner import Axis as Axis
from quell.bench.runner import Method as Method
