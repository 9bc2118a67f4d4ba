# SPDX-License-Identifier: Apache-2.0
"""A posterior of posteriordb as a NumPyro model, and the registry of all of them.

The unconstrained coordinates are Stan's: exp for positive numbers, log-differences for ordered vectors, stick breaking
for simplexes. Flat priors are `ImproperUniform`. Priors on truncated supports differ from Stan's by constants only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpyro.distributions as dist
from numpyro.distributions import constraints


class Port(NamedTuple):
    """A model with its data.

    Attributes:
        model: a NumPyro model.
        args: its arguments.
        names: the reference's name of each site, latent or deterministic.
        x64: whether it needs double precision, whatever the method.
    """

    model: Callable[..., None]
    args: tuple[Any, ...]
    names: dict[str, str]
    x64: bool = False


Data = dict[str, Any]

PORTS: dict[str, Callable[[Data], Port]] = {}
"""Makes a port of a posterior's data, by the name of the posterior."""


def port(name: str) -> Callable[[Callable[[Data], Port]], Callable[[Data], Port]]:
    """Register a function that makes a port of a posterior's data."""

    def register(make: Callable[[Data], Port]) -> Callable[[Data], Port]:
        PORTS[name] = make
        return make

    return register


def flat(shape: tuple[int, ...] = ()) -> Any:
    """Stan's `real` or `vector` without a prior."""
    if shape == ():
        return dist.ImproperUniform(constraints.real, (), ())
    return dist.ImproperUniform(constraints.real_vector, (), shape)


def flat_positive(shape: tuple[int, ...] = ()) -> Any:
    """Stan's `real<lower=0>` without a prior."""
    if shape == ():
        return dist.ImproperUniform(constraints.positive, (), ())
    return dist.ImproperUniform(constraints.independent(constraints.positive, 1), (), shape)


def same_names(*names: str) -> dict[str, str]:
    """Sites that have the reference's names."""
    return {name: name for name in names}
