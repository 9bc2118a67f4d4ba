# SPDX-License-Identifier: Apache-2.0
"""Single measurements behind the documentation, each a command: `python -m experiments.bench.studies.NAME`."""
