# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench`."""

import typer

from experiments.bench.command import bench

if __name__ == "__main__":
    typer.run(bench)
