# SPDX-License-Identifier: Apache-2.0
"""The posterior predictive of a NumPyro model."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key
from numpyro.infer import Predictive

from quell.adapters.numpyro.model import NumPyroModel
from quell.core.checks import check_count, check_key
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
    posterior_key, noise_key = jax.random.split(key)
    latents = result.sample(posterior_key, num)
    latents = {name: latents[name] for name in model.structure.names}
    args, kwargs = inputs
    found = []
    for number, start in enumerate(range(0, num, batch)):
        some = {name: values[start : start + batch] for name, values in latents.items()}
        predictive = Predictive(model.likelihood.call.model, posterior_samples=some, parallel=True)
        found.append(jax.device_get(predictive(jax.random.fold_in(noise_key, number), *args, **kwargs)))
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}
