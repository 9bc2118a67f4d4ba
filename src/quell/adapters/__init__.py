# SPDX-License-Identifier: Apache-2.0
"""Other libraries: NumPyro models in, losses for NumPyro's SVI out, results for ArviZ; imported when used."""

from typing import TYPE_CHECKING, Any

from quell.adapters.log_density import LogDensityModel as LogDensityModel
from quell.adapters.log_density import from_log_density as from_log_density

if TYPE_CHECKING:
    from quell.adapters.numpyro.model import NumPyroModel as NumPyroModel
    from quell.adapters.numpyro.model import from_numpyro as from_numpyro
    from quell.adapters.numpyro.svi import SVI as SVI
    from quell.adapters.numpyro.svi import EnsembleELBO as EnsembleELBO

__all__ = ["SVI", "EnsembleELBO", "LogDensityModel", "NumPyroModel", "from_log_density", "from_numpyro"]


def __getattr__(name: str) -> Any:
    """Import a name from its module, and NumPyro with it."""
    if name not in __all__:
        raise AttributeError(f"module 'quell.adapters' has no attribute {name!r}")
    module = "svi" if name in ("SVI", "EnsembleELBO") else "model"
    from quell.fit.extras import numpyro_part  # which imports all of fit: not before it is needed

    return getattr(numpyro_part(module, f"`quell.adapters.{name}`"), name)
