# SPDX-License-Identifier: Apache-2.0
"""`python -m quell`: the command line."""

from quell.cli.app import app

app(prog_name="quell")
