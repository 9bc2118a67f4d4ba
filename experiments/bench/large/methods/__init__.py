# SPDX-License-Identifier: Apache-2.0
"""The methods, one file for each library; a library is imported when one of its methods is asked for."""

import importlib
from typing import Any

from experiments.bench.large.methods.base import Method

RATES = {1.0: (0.003, 0.01, 0.03), 0.5: (0.01, 0.03), 0.25: (0.03,)}
"""Of Adam, by the share of the seconds within which they fall to zero along a cosine: larger ones suit shorter runs."""

_SEARCHED = [{"rate": rate, "share": share} for share, rates in RATES.items() for rate in rates]

METHODS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "quell-mf": ("quell_fits.mean_field", [{}]),
    "quell-mf-double": ("quell_fits.mean_field", [{}]),
    "quell-full": ("quell_fits.full_rank", [{}]),
    "numpyro-svi": ("numpyro_fits.mean_field", _SEARCHED),
    "numpyro-svi-rows": ("numpyro_fits.mean_field_rows", _SEARCHED),
    "numpyro-svi-full": ("numpyro_fits.full_rank", _SEARCHED),
    "numpyro-svi-full-rows": ("numpyro_fits.full_rank_rows", _SEARCHED),
    "blackjax-vi": ("blackjax_fits.mean_field", _SEARCHED),
    "dadvi": ("pymc_fits.dadvi", [{}]),
    "nuts": ("numpyro_fits.nuts", [{}]),
}
"""File and function of each, and the settings that it is tried with."""

DEFAULTS = ("quell-mf", "numpyro-svi", "blackjax-vi", "dadvi", "nuts")
IN_DOUBLE_PRECISION = {"quell-mf-double", "dadvi"}
REFERENCE = "nuts"
"""Whose moments are the truth, where its chains agree."""


def load(name: str) -> Method:
    """A method, with the library that it needs.

    Raises:
        ModuleNotFoundError: where that is not installed.
    """
    module, function = METHODS[name][0].split(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)
