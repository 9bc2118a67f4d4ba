# SPDX-License-Identifier: Apache-2.0
"""The benchmark's models in NumPyro; the rows are arguments, so that a minibatch is handed in as it is."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

NumPyroFunction = Callable[..., None]

GROUPS = 85
HIDDEN = 7


def logistic(features: Array, labels: Array, *, num_data: int) -> None:
    """Logistic regression with a standard normal prior; quell's rows have their label folded into the features."""
    import numpyro
    import numpyro.distributions as dist

    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    with numpyro.plate("data", num_data, subsample_size=features.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=features @ z), obs=labels)  # pyright: ignore[reportCallIssue]


def poisson(features: Array, counts: Array, *, num_data: int) -> None:
    """Poisson regression with a log link and a standard normal prior."""
    import numpyro
    import numpyro.distributions as dist

    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([features.shape[1]]).to_event(1))
    with numpyro.plate("data", num_data, subsample_size=features.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(features @ z)), obs=counts)


def hierarchical(group: Array, floor: Array, level: Array, *, num_data: int) -> None:
    """Varying intercepts with unknown spread and unknown noise."""
    import numpyro
    import numpyro.distributions as dist

    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        intercept: Any = numpyro.sample("intercept", dist.Normal(mean, spread))
    with numpyro.plate("data", num_data, subsample_size=group.shape[0]):
        numpyro.sample("level", dist.Normal(intercept[group] + slope * floor, noise), obs=level)


def network(inputs: Array, targets: Array, *, num_data: int, units: int = HIDDEN) -> None:
    """One hidden layer, standard normal weights, unknown noise."""
    import numpyro
    import numpyro.distributions as dist

    def weights(name: str, *shape: int) -> Any:
        return numpyro.sample(name, dist.Normal(0.0, 1.0).expand(shape).to_event(len(shape)))

    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    hidden = jnp.tanh(inputs @ weights("first", inputs.shape[1], units) + weights("shift", units))
    outputs = hidden @ weights("second", units) + numpyro.sample("offset", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", num_data, subsample_size=inputs.shape[0]):
        numpyro.sample("y", dist.Normal(outputs, noise), obs=targets)
