# SPDX-License-Identifier: Apache-2.0
"""The methods, one file for each library; a library is imported when one of its methods is asked for."""

import importlib

from experiments.bench.posteriordb.methods.base import Method

METHODS = {
    "quell": "quell_fits.full_rank",
    "quell-plain": "quell_fits.plain",
    "quell-mf": "quell_fits.mean_field",
    "quell-mf-response": "quell_fits.linear_response",
    "quell-flow": "quell_fits.flow",
    "nuts": "numpyro_fits.nuts",
    "nutpie": "nutpie_fits.run",
    "numpyro-svi": "numpyro_fits.full_rank",
    "numpyro-svi-mf": "numpyro_fits.mean_field",
    "numpyro-svi-best": "numpyro_fits.searched",
    "laplace": "numpyro_fits.laplace",
    "pathfinder": "blackjax_fits.pathfinder",
    "blackjax-vi": "blackjax_fits.full_rank",
    "blackjax-vi-mf": "blackjax_fits.mean_field",
    "batch-and-match": "batch_and_match.run",
    "gsm": "gsmvi_fits.run",
    "pymc-advi": "pymc_fits.mean_field",
    "pymc-advi-full": "pymc_fits.full_rank",
    "dadvi": "pymc_fits.dadvi",
}
"""File and function of each."""


IN_DOUBLE_PRECISION = {"batch-and-match", "gsm"}
"""Methods that single precision would not do justice."""


def load(name: str) -> Method:
    """A method, with the library that it needs.

    Raises:
        ModuleNotFoundError: where that is not installed.
    """
    module, function = METHODS[name].split(".")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)
