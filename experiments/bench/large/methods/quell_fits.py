# SPDX-License-Identifier: Apache-2.0
"""quell: `quell.from_numpyro` and `quell.fit` at their defaults, and standard deviations by linear response."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import quell
from experiments.bench.large.methods.base import Clock, Found, Look, peak_mb, places
from experiments.bench.large.models import LargeModel

QUANTITIES = 3
"""Coordinates of each site whose standard deviations linear response is asked for."""


def run(large: LargeModel, key: jax.Array, clock: Clock, setting: dict[str, Any], family: str, **options: Any) -> Found:
    """One family."""
    model = quell.from_numpyro(large.model, **large.data)
    result = quell.fit(model, getattr(quell, family)(model.dim), key=key)
    jax.block_until_ready(result.params)
    seconds, peak = clock.now, peak_mb()
    order, fitted = places(model), result.problem.family
    mean, root = (np.asarray(moment(result.params), float)[order] for moment in (fitted.mean, fitted.variance))
    root = np.sqrt(root)
    if family == "FullRank":
        covariance = np.asarray(fitted.covariance_product(result.params, jnp.eye(model.dim)), float)
        root = np.linalg.cholesky(covariance[np.ix_(order, order)])
    facts = {
        "peak_mb": peak,
        "status": result.status.name,
        "steps": result.history.num_steps,
        "gradients": result.num_gradients,
        "gap": None if result.gap is None else [result.gap.value, result.gap.standard_error],
        "chosen": None if result.choice is None else result.choice.reason,
        "result_warnings": list(result.warnings),
    }
    arrays = {}
    if family == "MeanField":
        began = clock.now
        arrays, facts["response"] = respond(model, result)
        facts["response_seconds"] = round(clock.now - began, 2)
    return Found([Look(seconds, mean, root)], facts, arrays)


def respond(model: Any, result: Any) -> tuple[dict[str, np.ndarray], str]:
    """Standard deviations of some coordinates by linear response, and their places in the flat latent."""
    zero = model.unravel(jnp.zeros(model.dim))
    is_real = {name: bool(jnp.all(model.constrain(jnp.zeros(model.dim))[name] == 0)) for name in zero}
    numbers, at, taken = 0, [], {}
    for name in sorted(zero):
        size = zero[name].size
        taken[name] = np.unique(np.linspace(0, size - 1, QUANTITIES).astype(int))
        at.append(numbers + taken[name])
        numbers += size

    def quantities(latent: dict[str, Any]) -> list[jax.Array]:
        """In unconstrained coordinates: all that are not real are positive, and their logarithms are."""
        values = {name: latent[name] if is_real[name] else jnp.log(latent[name]) for name in taken}
        return [jnp.ravel(values[name])[some] for name, some in taken.items()]

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = result.linear_response().of(quantities)
    except ValueError as error:
        return {}, str(error)
    told = "; ".join(str(one.message) for one in caught)
    return {
        "places": np.concatenate(at),
        "response_sd": np.concatenate([np.asarray(one) for one in found.std]),
    }, told


mean_field = functools.partial(run, family="MeanField")
full_rank = functools.partial(run, family="FullRank")
