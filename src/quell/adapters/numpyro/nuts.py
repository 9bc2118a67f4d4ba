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

LARGEST_DENSE = 1000
"""Coordinates up to which the mass matrix has correlations."""


def run_nuts(
    result: FitResult, key: Key[Array, ""], *, num_samples: int, num_warmup: int, num_chains: int, **options: Any
) -> MCMC:
    """NumPyro's NUTS on the posterior of a fit; `FitResult.nuts` documents it."""
    check_key(key)
    for name, value in {"num_samples": num_samples, "num_chains": num_chains}.items():
        check_count(name, value)
    model = result.problem.model
    mass = mass_matrix(result)
    kernel = NUTS(
        potential_fn=lambda z: -model.log_joint(z),
        inverse_mass_matrix=mass,
        dense_mass=mass.ndim == 2,
        adapt_mass_matrix=False,
        **options,
    )
    start_key, run_key = jax.random.split(key)
    starts = result.sample_flat(start_key, num_chains)
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method="vectorized",
        postprocess_fn=model.constrain,
        progress_bar=False,
    )
    mcmc.run(run_key, init_params=starts[0] if num_chains == 1 else starts, extra_fields=("num_steps", "diverging"))
    return mcmc


def mass_matrix(result: FitResult) -> Float[np.ndarray, "latent *latent"]:
    """The inverse mass matrix: the covariance of the fit, by linear response where its family has no correlations."""
    problem = result.problem
    if problem.family.refuses(Capability.MOMENTS) is not None:
        raise ValueError(
            f"`nuts` needs a family with {Capability.MOMENTS.value}, got {problem.family}; fit a Gaussian."
        )
    if problem.model.dim > LARGEST_DENSE:
        return np.asarray(problem.family.variance(result.params))
    if isinstance(problem.family, MeanField):
        return np.asarray(result.linear_response().covariance)
    identity = jnp.eye(problem.model.dim, dtype=jax.tree.leaves(result.params)[0].dtype)
    return np.asarray(problem.family.covariance_product(result.params, identity))
