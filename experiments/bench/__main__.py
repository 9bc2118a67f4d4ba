# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.bench`."""

from experiments.bench.commands import app

if __name__ == "__main__":
    app(prog_name="python -m experiments.bench")
