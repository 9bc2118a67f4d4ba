# SPDX-License-Identifier: Apache-2.0
"""From a fit to NumPyro's NUTS: starts and mass matrix."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.infer import MCMC, NUTS

from quell.core.checks import check_count, check_key
from quell.families import Capability, MeanField
from quell.fit.result import FitResult

FROM_FIT = {"potential_fn", "inverse_mass_matrix", "dense_mass", "adapt_mass_matrix"}
"""Options of NUTS that are not the user's."""

LARGEST_DENSE = 1000
"""Coordinates up to which the mass matrix has correlations."""


def run_nuts(result: FitResult, key: Key[Array, ""], **options: Any) -> MCMC:
    """NumPyro's NUTS on the posterior of a fit; `FitResult.nuts` documents it."""
    check_key(key)
    start_key, run_key = jax.random.split(key)
    mcmc, starts = sampler_and_starts(result, start_key, **options)
    mcmc.run(run_key, init_params=starts, extra_fields=("num_steps", "diverging"))
    return mcmc


def sampler_and_starts(
    result: FitResult, key: Key[Array, ""], *, num_samples: int, num_warmup: int, num_chains: int, **options: Any
) -> tuple[MCMC, Float[Array, "*chain latent"]]:
    """What is to be run, and its `init_params`."""
    for name, value in {"num_samples": num_samples, "num_chains": num_chains}.items():
        check_count(name, value)
    fixed = sorted(FROM_FIT & set(options))
    if fixed:
        raise TypeError(f"`{fixed[0]}` comes from the fit; for one of your own take `numpyro.infer.NUTS` itself.")
    model = result.problem.model
    mass, is_whole = mass_matrix(result)
    kernel = NUTS(
        potential_fn=lambda z: -model.log_joint(z),
        inverse_mass_matrix=mass,
        dense_mass=mass.ndim == 2,
        adapt_mass_matrix=not is_whole,
        **options,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        postprocess_fn=model.constrain,
        progress_bar=False,
    )
    starts = result.sample_flat(key, num_chains, corrected=False)
    return mcmc, starts[0] if num_chains == 1 else starts


def mass_matrix(result: FitResult) -> tuple[Float[np.ndarray, "latent *latent"], bool]:
    """The inverse mass matrix, and whether it has all correlations, so that it need not be adapted.

    The covariance of the fit, by linear response where its family has no correlations, or the variances alone.
    """
    family, params = result.problem.family, result.params
    if family.refuses(Capability.GAUSSIAN, Capability.MOMENTS) is not None:
        raise ValueError(f"`nuts` needs a Gaussian family, got {family}; fit `quell.FullRank` first.")
    if family.dim > LARGEST_DENSE:
        return np.asarray(family.variance(params)), False
    if not isinstance(family, MeanField):
        identity = jnp.eye(family.dim, dtype=jax.tree.leaves(params)[0].dtype)
        return np.asarray(family.covariance_product(params, identity)), True
    try:
        return np.asarray(result.linear_response().solved), True
    except ValueError:  # it is not at an optimum, or some draws cannot see all data
        return np.asarray(family.variance(params)), False
