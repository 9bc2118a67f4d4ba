# SPDX-License-Identifier: Apache-2.0
"""The ELBO of Gaussians that some method found, in double precision: for all methods by the same code.

It is exact where the structure of the model shows that, and else the mean of `DRAWS` draws of one fixed noise, most of
which cancels in the difference of two methods.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

import quell
from experiments.bench.large.methods.base import places
from experiments.bench.large.models import MODELS
from quell.diagnostics import estimate_elbo
from quell.evaluation import exactly, has_exact_elbo
from quell.families.location_scale import LocationScale

DRAWS = 4_000


def main(name: str, found: Path) -> None:
    """Print a line of JSON: the ELBO of each look, its standard error, and whether it is exact."""
    jax.config.update("jax_enable_x64", True)
    large = MODELS[name]()
    with np.load(found) as arrays:
        values, error, is_exact = elbos(large, arrays["means"], arrays["roots"])
    print(json.dumps({"elbos": values, "standard_error": error, "is_exact": is_exact}))


def elbos(large: Any, means: np.ndarray, roots: np.ndarray) -> tuple[list[float], float, bool]:
    """Of each Gaussian in turn."""
    model = quell.from_numpyro(large.model, **large.data)
    order = np.argsort(places(model))
    family = (quell.MeanField if roots.ndim == 2 else quell.FullRank)(model.dim, log_scale=False)
    problem = exactly(quell.Problem(model, family))
    estimates = []
    for mean, root in zip(means, roots, strict=True):
        scale = root[order] if root.ndim == 1 else np.linalg.cholesky((root @ root.T)[np.ix_(order, order)])
        if not (np.all(np.isfinite(mean)) and np.all(np.isfinite(scale))):
            estimates.append((float("nan"), 0.0))
            continue
        params = LocationScale(jnp.asarray(mean[order], float), jnp.asarray(scale, float))
        estimate = estimate_elbo(jax.random.key(1), problem, params, num=DRAWS)
        estimates.append((estimate.value, estimate.standard_error))
    return [round(value, 3) for value, _ in estimates], round(estimates[-1][1], 4), has_exact_elbo(problem)


if __name__ == "__main__":
    typer.run(main)
