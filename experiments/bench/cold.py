# SPDX-License-Identifier: Apache-2.0
"""A fit as a user sees it: in a process of its own, at the defaults, from the first to the last line.

python -m experiments.bench.cold sonar
"""

import argparse
import subprocess
import sys
import time

import jax

import quell
from experiments.bench.problems import make_problem

RUNS = 3


def cold_fit_seconds(problem: str, data_dir: str | None) -> float:
    """Seconds of `quell.fit` until it ends by itself, imports aside; the median of some new processes."""
    command = [sys.executable, "-m", "experiments.bench.cold", problem]
    command += [] if data_dir is None else ["--data-dir", data_dir]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(RUNS)]
    return sorted(float(output.split()[0]) for output in outputs)[RUNS // 2]


def main() -> None:
    """Fit a problem of the benchmark, and print the seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem")
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    problem = make_problem(arguments.problem, data_dir=arguments.data_dir).problem
    began = time.perf_counter()
    result = quell.fit(problem.model, problem.family, key=jax.random.key(0))
    jax.block_until_ready(result.params)
    print(f"{time.perf_counter() - began:.3f} s, {result.status.name}, {result.seconds}")


if __name__ == "__main__":
    main()
