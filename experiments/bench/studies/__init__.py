# SPDX-License-Identifier: Apache-2.0
"""Single measurements behind the documentation, each a command of its own: `python -m experiments.bench.studies.NAME`."""
