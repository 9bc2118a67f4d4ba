# SPDX-License-Identifier: Apache-2.0
"""Files as a user of the command line has them: models, data, and a folder that is not there yet."""

from types import SimpleNamespace

ROWS = "x,y\n1.0,0.3\n2.0,1.1\n-1.0,-0.2\n0.5,0.4\n"


def write_files(folder, models):
    """A file of models and one of data, in a folder of their own."""
    found = SimpleNamespace(models=folder / "models.py", data=folder / "data.csv", out=folder / "new" / "out")
    found.models.write_text(models)
    found.data.write_text(ROWS)
    return found
