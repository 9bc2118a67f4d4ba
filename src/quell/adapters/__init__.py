# SPDX-License-Identifier: Apache-2.0
"""Other libraries: models of NumPyro and PyMC and flows in, losses for NumPyro's SVI and results for ArviZ out."""

from typing import TYPE_CHECKING, Any

from quell.adapters.log_density import LogDensityModel as LogDensityModel
from quell.adapters.log_density import from_log_density as from_log_density

if TYPE_CHECKING:
    from quell.adapters.flowjax import Flow as Flow
    from quell.adapters.numpyro.model import NumPyroModel as NumPyroModel
    from quell.adapters.numpyro.model import from_numpyro as from_numpyro
    from quell.adapters.numpyro.svi import SVI as SVI
    from quell.adapters.numpyro.svi import EnsembleELBO as EnsembleELBO
    from quell.adapters.pymc import PyMCModel as PyMCModel
    from quell.adapters.pymc import from_pymc as from_pymc

_MODULES = {
    **{name: "numpyro.model" for name in ("NumPyroModel", "from_numpyro")},
    **{name: "numpyro.svi" for name in ("SVI", "EnsembleELBO")},
    "Flow": "flowjax",
    **{name: "pymc" for name in ("PyMCModel", "from_pymc")},
}

__all__ = [
    "SVI",
    "EnsembleELBO",
    "Flow",
    "LogDensityModel",
    "NumPyroModel",
    "PyMCModel",
    "from_log_density",
    "from_numpyro",
    "from_pymc",
]


def __getattr__(name: str) -> Any:
    """Import a name from its module, and the library with it."""
    if name not in _MODULES:
        raise AttributeError(f"module 'quell.adapters' has no attribute {name!r}")
    from quell.fit.extras import adapter  # which imports all of fit: not before it is needed

    return getattr(adapter(_MODULES[name], f"`quell.adapters.{name}`"), name)
