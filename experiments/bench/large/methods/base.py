# SPDX-License-Identifier: Apache-2.0
"""What every method returns: Gaussians along its way, in the order of NumPyro's unconstrained latents by name."""

import math
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.bench.large.models import LargeModel

LOOKS = 10
"""Gaussians of a method that goes on for as long as it may, whose ELBO is found after the clock has stopped."""


class Look(NamedTuple):
    """A Gaussian and when it was there.

    Args:
        seconds: since the data were there.
        mean: of the flat latent.
        root: standard deviations, or a lower triangular root of the covariance.
    """

    seconds: float
    mean: np.ndarray
    root: np.ndarray


class Found(NamedTuple):
    """What a method found.

    Args:
        looks: in the order of their seconds.
        facts: about the fit.
        arrays: more about it, by name.
    """

    looks: list[Look]
    facts: dict[str, Any]
    arrays: dict[str, np.ndarray] | None = None


class Clock:
    """Seconds since the data were there, and how many of them a method has."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._began = seconds, time.perf_counter()

    @property
    def now(self) -> float:
        """Since the data were there."""
        return time.perf_counter() - self._began


def peak_mb() -> int:
    """The most memory that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


Method = Callable[[LargeModel, jax.Array, Clock, dict[str, Any]], Found]


def flat(tree: dict[str, Any]) -> np.ndarray:
    """Sites by name, one after the other."""
    return np.asarray(ravel_pytree({name: jnp.asarray(value) for name, value in tree.items()})[0])


def places(model: Any) -> np.ndarray:
    """Where in the flat latent of a model of quell each number of that order is."""
    return np.asarray(flat(model.unravel(jnp.arange(model.dim, dtype=float))), int)


def descend(
    clock: Clock, setting: dict[str, Any], state: Any, advance: Callable[[Any, float], Any], look: Callable[[Any], Look]
) -> tuple[list[Look], int]:
    """Advance until the seconds are over, at a rate that falls to zero along a cosine of the clock.

    The first advance compiles, so that the cosine begins after it.

    Args:
        clock: with the seconds.
        setting: `rate`, and the `share` of the seconds.
        state: to begin from.
        advance: some steps at a rate.
        look: at a state, with the seconds of now.
    """
    until, looks, num = setting["share"] * clock.seconds, [], 1
    state = jax.block_until_ready(advance(jax.tree.map(_strong, state), setting["rate"]))
    began = clock.now
    while not looks or looks[-1].seconds < until:
        progress = min((clock.now - began) / max(until - began, 1e-9), 1.0)
        state = jax.block_until_ready(advance(state, setting["rate"] * 0.5 * (1 + math.cos(math.pi * progress))))
        num += 1
        if clock.now >= began + len(looks) / LOOKS * (until - began):
            looks.append(look(state))
    return looks, num


def _strong(leaf: Any) -> Any:
    """Without a weak type, which the first advance would take off, so that the second would compile again."""
    is_number = isinstance(leaf, jax.Array) and not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return jnp.asarray(leaf, leaf.dtype) if is_number else leaf
