# SPDX-License-Identifier: Apache-2.0
"""Parts of the adapters that a fit and its result offer, imported when they are used."""

import importlib
from typing import Any

LIBRARIES = {"flowjax": ("flowjax", "flows"), "numpyro": ("NumPyro", "numpyro"), "pymc": ("PyMC", "pymc")}
"""What adapters are named after, by their folder or file: the library, and the extra that installs it."""


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
        if (error.name or "").partition(".")[0] not in (library, "paramax", "pytensor"):
            raise
        name, extra = LIBRARIES[library]
        raise ModuleNotFoundError(f"{asker} needs {name}; try `pip install 'quell[{extra}]'`.") from error
