# SPDX-License-Identifier: Apache-2.0
"""Whether a function is known to have a continuous gradient, read off its program."""

import jax
import jax.numpy as jnp
import pytest

import quell
from quell.estimators.smoothness import has_no_kinks, is_smooth


def relu_layer(z):
    return jax.vmap(jax.nn.relu)(z)


@jax.jit
def nested(z):
    return jnp.where(jnp.arange(3) > 1, jnp.tanh(z), 2.0 * z)


SMOOTH = {
    "normal": lambda z: -0.5 * z**2,
    "student": lambda z: -2.0 * jnp.log1p(z**2 / 3.0),
    "softplus": jax.nn.softplus,
    "log-sigmoid": jax.nn.log_sigmoid,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "gather": lambda z: z[jnp.array([0, 2, 2])],
    "picked by the data": nested,
    "within a support": lambda z: jnp.where(z > 0, jnp.log(z), -jnp.inf),
    "compared in vain": lambda z: (jnp.any(z > 0), jnp.sin(z))[1],
    "loop": lambda z: jax.lax.scan(lambda total, x: (total + jnp.sin(x), None), 0.0, z)[0],
    "a support, added up": lambda z: 2.0 * jnp.sum(jnp.where(z > 0, jnp.log(z), -jnp.inf)) + jnp.sum(z),
    "solved": lambda z: jax.scipy.linalg.solve_triangular(2.0 * jnp.eye(3), z, lower=True),
    "gamma": lambda z: jax.lax.lgamma(jnp.exp(z)),
}
JUMPS = {
    "laplace": lambda z: -jnp.abs(z),
    "hinge": lambda z: -jnp.maximum(z, 0.0),
    "rectified": relu_layer,
    "leaky": jax.nn.leaky_relu,
    "huber": lambda z: jnp.where(jnp.abs(z) < 1, z**2, 2.0 * jnp.abs(z) - 1.0),
    "a root of a square": lambda z: jnp.sqrt(z**2),
    "a norm": lambda z: jnp.linalg.norm(z),
    "a sign": lambda z: z * jnp.sign(z),
    "clipped": lambda z: jnp.clip(z, 0.0, 1.0),
    "a count": lambda z: 1.0 * jnp.sum(z > 0),
    "an index": lambda z: jnp.arange(5.0)[z[0].astype(int)],
    "the largest": lambda z: z[jnp.argmax(z)],
    "a branch": lambda z: jax.lax.cond(z[0] > 0, lambda: z, lambda: -z),
    "sorted": jnp.sort,
    "plus infinity outside": lambda z: jnp.where(z > 0, z, jnp.inf),
    "carried by a loop": lambda z: jax.lax.scan(lambda c, x: (c + x, jnp.abs(c)), 0.0, z)[1],
    "the largest of a loop": lambda z: jax.lax.scan(lambda c, x: (jnp.where(c > x, c, x), None), -jnp.inf, z)[0],
    "a support within a mixture": lambda z: jnp.logaddexp(jnp.where(z > 0, -z, -jnp.inf), -(z**2)),
    "a support, exponentiated": lambda z: jnp.exp(jnp.where(z > 0, -z, -jnp.inf)),
    "a support, inverted": lambda z: 1.0 / jnp.where(z > 0, -z, -jnp.inf),
    "pooled": lambda z: jax.lax.reduce_window(z, -jnp.inf, jax.lax.max, (2,), (1,), "VALID"),
    "an angle": lambda z: jnp.arccos(jnp.cos(z)),
    "stopped": lambda z: jax.lax.stop_gradient(z) * z,
    "a root in disguise": lambda z: z**2 * jax.lax.rsqrt(z**2),
    "rectified in a loop": lambda z: jax.lax.scan(lambda c, x: (c + jnp.maximum(x, 0.0), None), 0.0, z)[0],
}


@pytest.mark.parametrize("name", [*SMOOTH, *JUMPS])
def test_operations_that_may_jump_are_seen(name):
    assert is_smooth({**SMOOTH, **JUMPS}[name], jnp.zeros(3)) == (name in SMOOTH)


def test_the_whole_density_is_read():
    """A kink of the prior counts too, and what does not depend on the latent does not."""

    def model_of(density, prior):
        return quell.Model(lambda z, y: density(jnp.abs(y) - z[0]), prior, jnp.linspace(-1, 1, 5), jnp.zeros(2))

    for density, prior, smooth in (
        (lambda r: -(r**2), lambda z: -jnp.sum(z**2), True),
        (lambda r: -jnp.abs(r), lambda z: -jnp.sum(z**2), False),
        (lambda r: -(r**2), lambda z: -jnp.sum(jnp.abs(z)), False),
    ):
        assert has_no_kinks(quell.Problem(model_of(density, prior), quell.FullRank(2))) == smooth
