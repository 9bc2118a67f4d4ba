# SPDX-License-Identifier: Apache-2.0
"""Parts of the adapters that a fit and its result offer, imported when they are used."""

import importlib
from typing import Any

LIBRARIES = {"numpyro": "NumPyro", "pymc": "PyMC"}
"""What adapters are named after, by their folder or file."""


def adapter(module: str, asker: str) -> Any:
    """A module of the adapters.

    Args:
        module: its name within them, which begins with that of the library.
        asker: what needs it, for the error where the library is not installed.
    """
    library = module.partition(".")[0]
    try:
        return importlib.import_module(f"quell.adapters.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in (library, "pytensor"):
            raise
        name = LIBRARIES[library]
        raise ModuleNotFoundError(f"{asker} needs {name}; try `pip install 'quell[{library}]'`.") from error
