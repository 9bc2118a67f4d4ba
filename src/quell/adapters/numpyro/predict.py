# SPDX-License-Identifier: Apache-2.0
"""The posterior predictive of a NumPyro model."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key
from numpyro import handlers
from numpyro.infer import Predictive

from quell.adapters.numpyro.model import NumPyroModel
from quell.core.checks import check_count, check_key
from quell.core.compilation import full_precision_products
from quell.fit.result import FitResult


def predict(
    result: FitResult, key: Key[Array, ""], inputs: tuple[tuple[Any, ...], dict[str, Any]], *, num: int, batch: int
) -> dict[str, np.ndarray]:
    """Draws of what a model has not observed; `FitResult.predict` documents them."""
    model = result.problem.model
    if not isinstance(model, NumPyroModel):
        raise ValueError(
            f"`predict` needs a model that draws its own data, as `quell.from_numpyro` makes them, got {model!r}; "
            "apply a function of yours to `result.sample(key, num)`."
        )
    check_key(key)
    check_count("num", num)
    check_count("batch", batch)
    args, kwargs = inputs
    function, names = model.likelihood.call.model, model.structure.names
    sites = handlers.trace(handlers.seed(function, jax.random.key(0))).get_trace(*args, **kwargs)
    free = {name: site for name, site in sites.items() if name not in names}
    samples = [name for name, site in free.items() if site["type"] == "sample" and not site["is_observed"]]
    if not samples:
        raise ValueError("`predict` draws what is not observed, and all is: give `None` in place of the data.")
    drawn = samples + [name for name, site in free.items() if site["type"] == "deterministic"]

    @jax.jit
    def some_draws(keys: Key[Array, "draw"], latents: dict[str, Array]) -> dict[str, Array]:
        def one(key: Key[Array, ""], latent: dict[str, Array]) -> dict[str, Array]:
            predictive = Predictive(function, posterior_samples=latent, return_sites=drawn, batch_ndims=0)
            return predictive(key, *args, **kwargs)

        return jax.vmap(one)(keys, latents)

    posterior_key, noise_key = jax.random.split(key)
    latents = {name: values for name, values in result.sample(posterior_key, num).items() if name in names}
    keys, found = jax.random.split(noise_key, num), []  # one for each draw, whatever the batch
    for start in range(0, num, batch):
        part = slice(start, start + batch)
        own = {name: values[part] for name, values in latents.items()}
        with full_precision_products():
            found.append(jax.device_get(some_draws(keys[part], own)))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
