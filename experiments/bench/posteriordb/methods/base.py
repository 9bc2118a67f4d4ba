# SPDX-License-Identifier: Apache-2.0
"""What every method does: fit a posterior, draw 1,000 times on the clock, and tell about itself afterwards."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.flatten_util import ravel_pytree
from numpyro import infer
from numpyro.infer.util import initialize_model

from experiments.bench.posteriordb.ports.port import Port
from experiments.bench.posteriordb.stopwatch import Stopwatch

NUM_DRAWS = 1_000
NUM_EVALUATED = 10_000
"""Draws of variational methods after the clock has stopped, so that errors are not those of a thousand draws."""


class Fitted(NamedTuple):
    """Draws to evaluate a fit by, and facts about it."""

    draws: dict[str, Any]
    facts: dict[str, Any]


class Run(NamedTuple):
    """A fit that is done.

    Args:
        evaluate: after the clock has stopped.
        again: the same fit with another key, in the way in which the library lets it be repeated; `None` where that
            is a new fit.
    """

    evaluate: Callable[[], Fitted]
    again: Callable[[jax.Array], Any] | None = None


Method = Callable[[Port, jax.Array, Stopwatch], Run]


def seed_of(key: jax.Array) -> int:
    """For libraries that take an integer."""
    return int(jax.random.randint(key, (), 0, 2**31 - 1))


def as_arrays(draws: dict[str, Any], port: Port) -> dict[str, np.ndarray]:
    """The sites of the reference as NumPy arrays."""
    return {site: np.asarray(draws[site]) for site in port.names}


def with_deterministic(port: Port, draws: dict[str, Any], key: jax.Array) -> dict[str, Any]:
    """Add draws of deterministic sites, where a guide has latents only."""
    missing = [site for site in port.names if site not in draws]
    if not missing:
        return draws
    return {**draws, **infer.Predictive(port.model, draws, return_sites=missing)(key, *port.args)}


class Unconstrained:
    """A posterior as a log density of one vector, with NumPyro's initial point.

    Args:
        port: the posterior.
        key: of the initial point.
    """

    def __init__(self, port: Port, key: jax.Array) -> None:
        self._port, self._info = port, initialize_model(key, port.model, model_args=port.args)
        self.start, self._unravel = ravel_pytree(self._info.param_info.z)
        self.dim = self.start.size

    def log_density(self, z: jax.Array) -> jax.Array:
        """Up to a constant."""
        return -self._info.potential_fn(self._unravel(z))

    def mode(self) -> tuple[np.ndarray, np.ndarray]:
        """Where L-BFGS of SciPy ends, and its inverse Hessian: what score matching is advised to start from."""
        value_and_grad = jax.jit(jax.value_and_grad(lambda z: -self.log_density(z)))

        def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
            value, grad = value_and_grad(z.astype(self.start.dtype))
            return float(value), np.asarray(grad, float)

        found: Any = scipy.optimize.minimize(objective, np.asarray(self.start, float), jac=True, method="L-BFGS-B")
        return found.x.astype(self.start.dtype), np.asarray(found.hess_inv.todense(), self.start.dtype)

    def draws(self, z: jax.Array) -> dict[str, Any]:
        """Draws of all sites, of draws of the vector."""
        found = jax.vmap(lambda one: self._info.postprocess_fn(self._unravel(one)))(z)
        return with_deterministic(self._port, found, jax.random.key(0))

    def on_the_clock(self, z: jax.Array) -> None:
        """Draws of all sites as arrays, which end what is timed."""
        as_arrays(self.draws(z), self._port)


class Gaussian(NamedTuple):
    """What some methods return: a mean, and a root of the covariance."""

    mean: jax.Array
    root: jax.Array

    def draw(self, seed: int, num: int) -> jax.Array:
        """Draws of the vector."""
        noise = jax.random.normal(jax.random.key(seed), (num, self.mean.size), self.mean.dtype)
        return self.mean + noise @ self.root.T

    def elbo(self, log_density: Callable[[jax.Array], jax.Array]) -> float:
        """By a thousand draws; up to the constant of the density."""
        _, log_det = np.linalg.slogdet(np.asarray(self.root, float))
        entropy = 0.5 * self.mean.size * (1 + np.log(2 * np.pi)) + log_det
        return float(jnp.mean(jax.lax.map(log_density, self.draw(3, 1_000)))) + float(entropy)


def gaussian_run(posterior: Unconstrained, watch: Stopwatch, found: Gaussian, facts: dict[str, Any]) -> Run:
    """Draw from a Gaussian on the clock."""
    jax.block_until_ready(found)
    watch.mark("fit")
    posterior.on_the_clock(found.draw(1, NUM_DRAWS))
    watch.mark("draws")

    def evaluate() -> Fitted:
        elbo = found.elbo(posterior.log_density)
        told = {"status": "completed" if np.isfinite(elbo) else "not finite", "elbo": elbo, **facts}
        return Fitted(posterior.draws(found.draw(2, NUM_EVALUATED)), told)

    return Run(evaluate)
