# SPDX-License-Identifier: Apache-2.0
"""The benchmark: seconds from a compiled start to within a nat, and a tenth of a nat, of the optimum."""

from experiments.bench.gaussian import Gaussian as Gaussian
from experiments.bench.problems import BenchProblem as BenchProblem
from experiments.bench.problems import make_problem as make_problem
from experiments.bench.runner import AbstractRunner as AbstractRunner
from experiments.bench.runner import Axis as Axis
from experiments.bench.runner import Method as Method
