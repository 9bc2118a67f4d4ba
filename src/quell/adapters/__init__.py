# SPDX-License-Identifier: Apache-2.0
"""Models in, losses out: what connects quell with NumPyro, which is imported when one of these names is used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quell.adapters.numpyro.model import NumPyroModel as NumPyroModel
    from quell.adapters.numpyro.model import from_numpyro as from_numpyro
    from quell.adapters.numpyro.svi import SVI as SVI
    from quell.adapters.numpyro.svi import EnsembleELBO as EnsembleELBO

_HOMES = {
    "EnsembleELBO": "numpyro.svi",
    "NumPyroModel": "numpyro.model",
    "SVI": "numpyro.svi",
    "from_numpyro": "numpyro.model",
}

__all__ = ["SVI", "EnsembleELBO", "NumPyroModel", "from_numpyro"]


def __getattr__(name: str) -> Any:
    """Import what was asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'quell.adapters' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"quell.adapters.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "numpyro":
            raise
        raise ModuleNotFoundError(
            f"`quell.adapters.{name}` was asked for, and NumPyro is not installed. The extra `numpyro` was needed. "
            "Type `pip install 'quell[numpyro]'`."
        ) from error


def __dir__() -> list[str]:
    """The names of this package."""
    return sorted(_HOMES)
