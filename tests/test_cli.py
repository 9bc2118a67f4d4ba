# SPDX-License-Identifier: Apache-2.0
"""The command line's version, and what `import quell` does not import."""

import subprocess
import sys

from typer.testing import CliRunner

import quell
from quell.cli.app import app

OPTIONAL = ("arviz", "jinja2", "matplotlib", "numpyro", "rich", "sklearn", "typer")


def test_import_quell_imports_no_optional_package():
    code = f"import sys, quell; print([name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version():
    result = CliRunner().invoke(app, ["version"])
    assert result.exit_code == 0
    assert result.stdout.strip() == quell.__version__
