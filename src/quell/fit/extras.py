# SPDX-License-Identifier: Apache-2.0
"""Parts of the adapters that a fit and its result offer, imported when they are used."""

import importlib
from typing import Any


def numpyro_part(module: str, asker: str) -> Any:
    """A module of the adapter to NumPyro.

    Args:
        module: its name.
        asker: what needs it, for the error where NumPyro is not installed.
    """
    try:
        return importlib.import_module(f"quell.adapters.numpyro.{module}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpyro":
            raise
        raise ModuleNotFoundError(f"{asker} needs NumPyro; try `pip install 'quell[numpyro]'`.") from error
